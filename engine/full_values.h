// SPDX-License-Identifier: Apache-2.0
#pragma once
// `full_value_of()` gathers what tensor-parallel ranks have of a parameter, and
// `local_value_of()` is this rank's part of it again.

#include <ATen/core/Tensor.h>

namespace tessera::sharding {

struct DividedParameter;

} // namespace tessera::sharding

namespace tessera::engine {

/// Returns how tensor-parallel ranks divide a parameter; null if every one has
/// all of it.
const sharding::DividedParameter* division_of(const at::Tensor& parameter);

/// Returns the whole of a parameter, or of a tensor that is divided like it.
/// Collective over the tensor-parallel ranks that divide it; blocks.
/// @param local what this rank has, on the device of the parameter.
/// @return `local` itself if the parameter is not divided.
at::Tensor full_value_of(const at::Tensor& local, const at::Tensor& parameter);

/// The same of a tensor that some of these ranks may lack.
/// @param local undefined if this one does; its part is zeros then.
/// @return undefined if all do.
at::Tensor full_gradient_of(
    const at::Tensor& local,
    const at::Tensor& parameter);

/// Returns this rank's part of such a tensor: a view.
/// @throws tessera::Error naming the parameter if `full` has other sizes.
at::Tensor local_value_of(const at::Tensor& full, const at::Tensor& parameter);

} // namespace tessera::engine
