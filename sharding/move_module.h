// SPDX-License-Identifier: Apache-2.0
#pragma once
// A module to another device or type, without giving memory to what has none
// yet.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

namespace tessera {

/// Moves all parameters and buffers of `module` to `device`, in place. Those
/// that are lazy stay so and get their memory there: wrap() or materialize()
/// then fill them with the numbers that they would have elsewhere. Tensors that
/// share memory still do (module.to() would part them). Call it before wrap();
/// gradients are dropped. Blocks on the copies.
///
/// ```
/// auto model = tessera::lazy([&] { return MyModel(config); });
/// tessera::move_module(*model, tessera::world().device());
/// auto engine = tessera::wrap(model, options);
/// ```
/// @throws tessera::Error when a parameter is sharded already.
void move_module(torch::nn::Module& module, c10::Device device);

/// Gives floating-point parameters without memory another type, in place: they
/// get their values, converted, when they get memory. For module.to(dtype),
/// which would read them; what has memory stays as it is.
void convert_deferred(torch::nn::Module& module, at::ScalarType dtype);
/// The same with a type for each parameter. @param dtype_of by name.
void convert_deferred(
    torch::nn::Module& module,
    const std::function<at::ScalarType(const std::string& name)>& dtype_of);

} // namespace tessera
