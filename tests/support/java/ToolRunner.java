import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs main() of one class after the other, so that many tools cost one start of a JVM.
 *
 * A line of standard input is a command: standard input in base64, the class and its arguments,
 * with tabs between. The answer is a line with the exit code and the sizes of what was printed on
 * standard output and standard error, and then both.
 */
public class ToolRunner {
    /** Leaves a main() that wants to end the process. */
    private static class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** Collects what the current command prints until it ends; some classes keep System.out. */
    private static class Collector extends OutputStream {
        private final ByteArrayOutputStream collected = new ByteArrayOutputStream();
        private boolean isOpen;

        @Override
        public synchronized void write(int b) {
            if (isOpen) {
                collected.write(b);
            }
        }

        synchronized void open() {
            isOpen = true;
        }

        /** Called once a command wants to exit: what catches that is not to print anything. */
        synchronized void close(PrintStream stream) {
            stream.flush();
            isOpen = false;
        }

        synchronized byte[] take() {
            byte[] taken = collected.toByteArray();
            collected.reset();
            return taken;
        }
    }

    /** What a command wants done when its process ends. */
    private static final List<Runnable> hooks = new ArrayList<>();

    private static int exitCode;

    private static synchronized void end(int code, Collector out, Collector err) {
        if (exitCode < 0) {
            exitCode = code;
            out.close(System.out);
            err.close(System.err);
        }
        throw new Ended();
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        Collector out = new Collector();
        Collector err = new Collector();
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        Exit.setExitProcedure((code, message) -> end(code, out, err));
        Exit.setHaltProcedure((code, message) -> end(code, out, err));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split("\t", -1);
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
            exitCode = -1;
            out.open();
            err.open();
            run(words[1], Arrays.copyOfRange(words, 2, words.length));
            out.open(); // some print their result when their process ends
            hooks.forEach(Runnable::run);
            hooks.clear();
            out.close(System.out);
            err.close(System.err);
            byte[] printed = out.take();
            byte[] complained = err.take();
            answers.println(exitCode + " " + printed.length + " " + complained.length);
            answers.write(printed);
            answers.write(complained);
            answers.flush();
        }
    }

    private static void run(String name, String[] arguments) throws Exception {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            exitCode = Math.max(exitCode, 0);
        } catch (InvocationTargetException error) {
            if (exitCode < 0) {
                error.getCause().printStackTrace();
                exitCode = 1;
            }
        }
    }
}
