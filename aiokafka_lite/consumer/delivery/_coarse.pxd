# The system's cheapest clock: a resolution of a few milliseconds for a few nanoseconds. A compiled
# module that cimports this as `time` reads it by `time.monotonic`.

cdef extern from *:
    """
    #ifdef _WIN32
    #include <windows.h>
    static inline double coarse_s(void) { return 1e-3 * (double)GetTickCount64(); }
    #else
    #include <time.h>
    #if defined(CLOCK_MONOTONIC_COARSE)
    #define COARSE_CLOCK CLOCK_MONOTONIC_COARSE
    #elif defined(CLOCK_MONOTONIC_RAW_APPROX)
    #define COARSE_CLOCK CLOCK_MONOTONIC_RAW_APPROX
    #else
    #define COARSE_CLOCK CLOCK_MONOTONIC
    #endif
    static inline double coarse_s(void) {
        struct timespec now;
        clock_gettime(COARSE_CLOCK, &now);
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    #endif
    """
    double monotonic "coarse_s"() noexcept
