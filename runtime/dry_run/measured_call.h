// SPDX-License-Identifier: Apache-2.0
#pragma once
// `measured_results()` finds the results and the temporary memory of an
// operator by running its kernel for the CPU on memory without values.
//
// [Note: measured operators] Where LibTorch's C++ has no Meta kernel, or where
// the CPU's kernel takes memory besides its results (convolutions reorder
// their arguments or unfold them to columns), the kernel itself is run: on dry
// memory, which reads as zeros. Of operators that treat examples independently,
// a few examples are run twice, and sizes and memory of the batch follow from
// the difference; others run as they are, up to a limit. A call with the same
// shapes is not run again.
//
// [Note: products of 16 bits on the CPU] oneDNN, which LibTorch multiplies them
// with, takes working memory that depends on the shapes, the processor and the
// number of threads: blocks of both factors and of sums, up to some MiB. It
// asks for all of it before it multiplies, so that a product that is refused it
// says how much, and takes no time. Before that, factors of batches whose
// memory has gaps, as that of heads has, are copied.

#include "tessera/runtime/dry_run/dry_call.h"

#include <c10/core/DispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

/// Whether results are measured (by name with the overload) though there are
/// other ways to find them, because of the memory that the kernel takes.
bool is_always_measured(const std::string& name);

/// The arguments whose values decide about the shapes of the results; empty if
/// no values do.
std::vector<size_t> shaping_arguments(
    const c10::OperatorHandle& op,
    const DryCall& call);

/// Results of a call, on new memory of the dry run of this thread; where that
/// is for the CPU, the temporary memory of the kernel is allocated besides and
/// freed.
/// @param keys the dispatch keys of the kernel.
/// @return nothing if the arguments are too large to run the kernel.
/// @throws c10::Error if the kernel fails.
std::optional<std::vector<c10::IValue>> measured_results(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    const DryCall& call);

/// The working memory of LibTorch's own product of two matrices of 16 bits, or
/// of batches of them, on the CPU; see [Note: products of 16 bits on the CPU].
/// Nothing of other types.
/// @param a [m, k] or [batch, m, k], @param b [k, n] or [batch, k, n], on the
///   dry run of this thread.
int64_t product_working_bytes(const at::Tensor& a, const at::Tensor& b);

/// "in or after the layer 'a.b'", for errors.
std::string place_in_model(const std::string& module);

} // namespace tessera::runtime
