// SPDX-License-Identifier: Apache-2.0
#pragma once
// `use_fused_operators()` chooses, for the process, between kernels of our own
// that do the work of several of LibTorch's operators and those operators.
//
// [Note: fused operators] `fused` of a configuration is `auto` or `off`. What
// has a kernel of our own and the same by LibTorch's operators asks here which
// one serves, and nowhere else; with `off`, results have the bits that
// LibTorch's operators give.

namespace tessera::runtime {

/// Whether kernels of our own serve; true before the first call of the other.
bool uses_fused_operators();

/// Do not call it while operators run, nor between a forward and its backward.
void use_fused_operators(bool use);

} // namespace tessera::runtime
