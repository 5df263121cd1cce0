// SPDX-License-Identifier: Apache-2.0
#pragma once
// `move_module()` moves a module to another device without allocating lazy
// tensors.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

namespace tessera {

/// Moves all parameters and buffers of `module` to `device`, in place. Lazy
/// ones stay lazy and get their memory there: wrap() or materialize() then fill
/// them with the same values as on any other device. Tensors that share memory
/// still do (module.to() would separate them). Call it before wrap(); gradients
/// are dropped. Blocks until copies are complete.
///
/// ```
/// auto model = tessera::lazy([&] { return MyModel(config); });
/// tessera::move_module(*model, tessera::world().device());
/// auto engine = tessera::wrap(model, options);
/// ```
/// @throws tessera::Error when a parameter is sharded already.
void move_module(torch::nn::Module& module, c10::Device device);

/// Converts floating-point parameters without memory to another dtype, in
/// place: their values are converted when they get memory. Use it in place of
/// module.to(dtype), which would read them; parameters that have memory do not
/// change.
void convert_deferred(torch::nn::Module& module, at::ScalarType dtype);
/// As above with a dtype for each parameter.
/// @param dtype_of by name.
void convert_deferred(
    torch::nn::Module& module,
    const std::function<at::ScalarType(const std::string& name)>& dtype_of);

} // namespace tessera
