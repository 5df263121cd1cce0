// SPDX-License-Identifier: Apache-2.0
#pragma once
// TESSERA_CLONES compiles a function for several instruction sets, of which the
// program selects one when it starts.

// Not with ThreadSanitizer: clones are selected during dynamic linking by code
// that calls the sanitizer before it is initialized.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#define TESSERA_CLONES \
  __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define TESSERA_CLONES
#endif
