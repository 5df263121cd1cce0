// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LowPrecision` names the 16-bit types that kernels read and write in addition
// to float32. Plain C++: CUDA sources and the per-ISA sources include it.

namespace tessera::runtime {

/// kNone: the type of the master weights.
enum class LowPrecision { kNone, kBFloat16, kFloat16 };

} // namespace tessera::runtime
