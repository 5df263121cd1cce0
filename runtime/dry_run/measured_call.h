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

#include "tessera/runtime/dry_run/dry_call.h"

#include <c10/core/DispatchKeySet.h>

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

/// "in or after the layer 'a.b'", for errors.
std::string place_in_model(const std::string& module);

} // namespace tessera::runtime
