import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * A member of a share group, as benchmarks.contestants.sharing has them in Python.
 *
 * Arguments: mode, address, topic, handlers at a time, duration of a handler in ms, records to drain.
 */
public class Sharing {
    /** What the client told of a record's acknowledgement. */
    private static final int UNKNOWN = 0, LOST = 1, ACCEPTED = 2;
    private static final Duration POLL = Duration.ofMillis(100);
    private static final OperatingSystemMXBean PROCESS =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    /** One delivery of a record. */
    private static class Row {
        int partition, deliveryCount, fate;
        long offset, began, ended;
    }

    private final String mode, address, topic;
    private final int concurrency;
    private final long pauseMs, expected;
    private volatile boolean isStopped;

    private Sharing(String[] words) {
        mode = words[0];
        address = words[1];
        topic = words[2];
        concurrency = Integer.parseInt(words[3]);
        pauseMs = Long.parseLong(words[4]);
        expected = Long.parseLong(words[5]);
    }

    public static void main(String[] words) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + AppInfoParser.getVersion());
        String group = input.readLine();
        Sharing sharing = new Sharing(words);
        Thread listener = new Thread(() -> {
            try {
                input.readLine();
            } catch (Exception ignored) {
                // stopped all the same
            }
            sharing.isStopped = true;
        });
        listener.setDaemon(true);
        listener.start();
        switch (sharing.mode) {
            case "take" -> sharing.take(group);
            case "drain" -> sharing.drain(group);
            default -> sharing.handle(group);
        }
        System.out.println("end");
        System.exit(0);
    }

    private KafkaShareConsumer<byte[], byte[]> consumer(String group, Map<String, String> settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", address);
        properties.put("group.id", group);
        properties.putAll(settings);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        KafkaShareConsumer<byte[], byte[]> made = new KafkaShareConsumer<>(properties, bytes, bytes);
        made.subscribe(List.of(topic));
        return made;
    }

    private static void tell(String word, long count) {
        System.out.println(
            word + " " + System.nanoTime() + " " + PROCESS.getProcessCpuTime() + " " + count);
    }

    private void take(String group) throws Exception {
        tell("making", 0);
        try (KafkaShareConsumer<byte[], byte[]> consumer = consumer(group, Map.of())) {
            while (consumer.poll(POLL).isEmpty()) {
                // the group is not there yet
            }
            tell("first", 1);
            while (!isStopped) {
                Thread.sleep(5);
            }
        }
    }

    private void drain(String group) {
        long count = 0;
        try (KafkaShareConsumer<byte[], byte[]> consumer = consumer(group, Map.of())) {
            while (count == 0) {
                count = consumer.poll(POLL).count();
            }
            tell("first", count);
            while (count < expected && !isStopped) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    count += record.value() == null ? 0 : 1;
                }
            }
            tell("done", count);
        }
    }

    private void handle(String group) throws Exception {
        Map<String, String> settings = Map.of(
            "share.acknowledgement.mode", "explicit",
            "max.poll.records", Integer.toString(concurrency));
        List<Row> rows = new ArrayList<>();
        Map<String, Row> latest = new HashMap<>();
        ExecutorService pool = Executors.newFixedThreadPool(concurrency);
        try (KafkaShareConsumer<byte[], byte[]> consumer = consumer(group, settings)) {
            consumer.setAcknowledgementCommitCallback((offsets, error) ->
                offsets.forEach((place, found) -> found.forEach(offset -> {
                    Row row = latest.get(place.partition() + "-" + offset);
                    if (row != null) {
                        row.fate = error == null ? ACCEPTED : LOST;
                    }
                })));
            while (!isStopped) {
                List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
                consumer.poll(POLL).forEach(records::add);
                if (rows.isEmpty() && !records.isEmpty()) {
                    tell("first", records.size());
                }
                CountDownLatch left = new CountDownLatch(records.size());
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    Row row = new Row();
                    row.partition = record.partition();
                    row.offset = record.offset();
                    row.deliveryCount = record.deliveryCount().orElse((short) 0);
                    rows.add(row);
                    latest.put(row.partition + "-" + row.offset, row);
                    pool.execute(() -> {
                        row.began = System.nanoTime();
                        try {
                            Thread.sleep(pauseMs);
                        } catch (InterruptedException ignored) {
                            // nobody interrupts
                        }
                        row.ended = System.nanoTime();
                        left.countDown();
                    });
                }
                left.await();
                records.forEach(consumer::acknowledge);
            }
        }
        pool.shutdown();
        StringBuilder report = new StringBuilder();
        for (Row row : rows) {
            report.append("row ").append(row.partition).append(' ').append(row.offset).append(' ')
                .append(row.deliveryCount).append(' ').append(row.began).append(' ')
                .append(row.ended).append(' ').append(row.fate).append('\n');
        }
        System.out.print(report);
        System.out.flush();
    }
}
