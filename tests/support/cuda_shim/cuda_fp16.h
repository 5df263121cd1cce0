// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stands for CUDA's header of this name where .cu files are compiled as C++.

#include "support/cuda_shim/narrow_float.h"

#include <c10/util/Half.h>

using __half = tessera::tests::cuda_shim::NarrowFloat<
    c10::detail::fp16_ieee_to_fp32_value,
    c10::detail::fp16_ieee_from_fp32_value>;

inline constexpr auto __half2float = __half::widened;
inline constexpr auto __float2half_rn = __half::rounded;
inline constexpr auto __ushort_as_half = __half::of_bits;
inline constexpr auto __half_as_ushort = __half::bits_of;
