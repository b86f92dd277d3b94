"""Detection of the processor's x86-64 level at run time."""

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    static int x86_64_level(void) {
        __builtin_cpu_init();
        if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
              && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")))
            return 1;
        return 3;
    }
    #else
    static int x86_64_level(void) { return 1; }
    #endif
    """
    int x86_64_level() nogil


def level():
    """Return 3 (AVX2) or 1 (less, or another architecture)."""
    return x86_64_level()
