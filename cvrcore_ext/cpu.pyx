"""Detection of the processor's x86-64 level at run time."""

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #include <setjmp.h>
    #include <signal.h>

    static int claims_avx512(void) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512vl");
    }

    /* One instruction of each group that the kernels use. */
    __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl"), noinline))
    static int use_avx512(float two) {
        const __m512 twos = _mm512_set1_ps(two);
        const __m512 sixes = _mm512_fmadd_ps(twos, twos, twos);
        const __mmask16 larger = _mm512_cmp_ps_mask(sixes, twos, _CMP_GT_OQ);
        const __m512i words = _mm512_maskz_abs_epi16(0x00ff00ff, _mm512_cvtps_epi32(sixes));
        const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_lzcnt_epi32(_mm512_cvtps_epi32(sixes)));
        return larger == 0xffff && _mm512_reduce_add_ps(_mm512_and_ps(sixes, sixes)) == 96.0f
            && _mm_cvtsi128_si32(_mm512_castsi512_si128(words)) == 6 && _mm_extract_epi8(bytes, 15) == 29;
    }

    static sigjmp_buf way_out;
    static void leave(int number) { siglongjmp(way_out, number); }

    /* Result of `work`, or 0 if it holds an instruction that the processor refuses. */
    static int attempt(int (*work)(float)) {
        struct sigaction ours, before;
        int result = 0;
        ours.sa_handler = leave;
        ours.sa_flags = 0;
        sigemptyset(&ours.sa_mask);
        if (sigaction(SIGILL, &ours, &before))
            return 0;
        if (!sigsetjmp(way_out, 1))
            result = work(2.0f);
        sigaction(SIGILL, &before, 0);
        return result;
    }

    static int use_illegal(float two) {
        __asm__ volatile("ud2");
        return two == 2.0f;
    }
    static int refuses_illegal(void) { return !attempt(use_illegal); }

    static int x86_64_level(void) {
        __builtin_cpu_init();
        if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
              && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")))
            return 1;
        /* A hypervisor may announce what it does not let through: execute it. */
        return claims_avx512() && attempt(use_avx512) ? 4 : 3;
    }
    #else
    static int x86_64_level(void) { return 1; }
    static int refuses_illegal(void) { return 1; }
    #endif
    """
    int x86_64_level() nogil
    int refuses_illegal() nogil


def level():
    """Return 4 (AVX-512, and its instructions were executed), 3 (AVX2) or 1 (less)."""
    return x86_64_level()


def refuses():
    """Return whether `level` would notice an illegal instruction instead of ending the process."""
    return bool(refuses_illegal())
