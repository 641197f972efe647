// How a plain loop is built for several instruction sets: the compiler makes one copy of the
// function for each and the loader takes the best.
#pragma once

// Sanitizers do not work in the loader's choice, which runs before they start.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define NPU_CLONES [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define NPU_CLONES
#endif
// What such a function calls must become part of it.
#define NPU_INLINE [[gnu::always_inline]] inline
