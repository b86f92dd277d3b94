"""What this processor can run, asked of the processor itself."""

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    static int x86_64_level(void) {
        __builtin_cpu_init();
        if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
              && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")))
            return 1;
        if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
              && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq")
              && __builtin_cpu_supports("avx512vl")))
            return 3;
        return 4;
    }
    #else
    static int x86_64_level(void) { return 1; }
    #endif
    """
    int x86_64_level() nogil


def level():
    """Return 4 (AVX-512), 3 (AVX2) or 1 (neither, or another architecture)."""
    return x86_64_level()
