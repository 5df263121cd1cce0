// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Pack` is neighboring elements that a CUDA thread moves by one instruction,
// or by one for each 16 bytes; `widen()` and `narrow()` convert elements.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tessera::runtime {

namespace {

__device__ inline float widen(float x) {
  return x;
}
__device__ inline double widen(double x) {
  return x;
}
__device__ inline float widen(__half x) {
  return __half2float(x);
}
__device__ inline float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

/// Rounds as LibTorch does: float64 to 16 bits by way of float32.
template <typename To, typename Wide>
__device__ To narrow(Wide x) {
  if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

template <typename T, int kWidth>
struct Pack {
  T values[kWidth];
};

/// What one instruction moves of `kBytes` bytes.
template <size_t kBytes>
using PackWord = std::conditional_t<
    kBytes == 2,
    uint16_t,
    std::conditional_t<
        kBytes == 4,
        uint32_t,
        std::conditional_t<kBytes == 8, uint2, uint4>>>;

// nvcc 13 makes loads of these one instruction, but splits a store of several
// values into one for each (scripts/check_kernels.py looks at both).
__device__ inline void store_word(uint16_t* to, uint16_t word) {
  *to = word;
}
__device__ inline void store_word(uint32_t* to, uint32_t word) {
#if defined(__CUDA_ARCH__)
  asm("st.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(word)
      : "memory");
#else
  *to = word;
#endif
}
__device__ inline void store_word(uint2* to, uint2 word) {
#if defined(__CUDA_ARCH__)
  asm("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
      "r"(word.x),
      "r"(word.y)
      : "memory");
#else
  *to = word;
#endif
}
__device__ inline void store_word(uint4* to, uint4 word) {
#if defined(__CUDA_ARCH__)
  asm("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
          __cvta_generic_to_global(to)),
      "r"(word.x),
      "r"(word.y),
      "r"(word.z),
      "r"(word.w)
      : "memory");
#else
  *to = word;
#endif
}

/// Bytes by which the address of a pack must be divisible.
template <typename T, int kWidth>
constexpr size_t kPackAlignment = alignof(PackWord<sizeof(T) * kWidth>);

/// Whether `pointer` may be that of a pack; null may.
__device__ __host__ inline bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// @param from divisible by kPackAlignment.
template <int kWidth, typename T>
__device__ Pack<T, kWidth> load_pack(const T* from) {
  using Word = PackWord<sizeof(T) * kWidth>;
  constexpr int kWords = sizeof(T) * kWidth / sizeof(Word);
  Word words[kWords];
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    words[k] = reinterpret_cast<const Word*>(from)[k];
  }
  Pack<T, kWidth> pack;
  memcpy(&pack, words, sizeof(pack));
  return pack;
}

/// @param to divisible by kPackAlignment.
template <int kWidth, typename T>
__device__ void store_pack(T* to, const Pack<T, kWidth>& pack) {
  using Word = PackWord<sizeof(T) * kWidth>;
  constexpr int kWords = sizeof(T) * kWidth / sizeof(Word);
  Word words[kWords];
  memcpy(words, &pack, sizeof(pack));
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    store_word(reinterpret_cast<Word*>(to) + k, words[k]);
  }
}

} // namespace

} // namespace tessera::runtime
