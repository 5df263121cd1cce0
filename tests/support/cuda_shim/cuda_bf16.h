// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stands for CUDA's header of this name where .cu files are compiled as C++.

#include "support/cuda_shim/narrow_float.h"

#include <c10/util/BFloat16.h>

using __nv_bfloat16 = tessera::tests::cuda_shim::
    NarrowFloat<c10::detail::f32_from_bits, c10::detail::round_to_nearest_even>;

inline constexpr auto __bfloat162float = __nv_bfloat16::widened;
inline constexpr auto __float2bfloat16_rn = __nv_bfloat16::rounded;
inline constexpr auto __ushort_as_bfloat16 = __nv_bfloat16::of_bits;
inline constexpr auto __bfloat16_as_ushort = __nv_bfloat16::bits_of;
