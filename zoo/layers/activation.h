// SPDX-License-Identifier: Apache-2.0
#pragma once
// activation() looks up activation functions by transformers' names.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera::zoo {

using Activation = at::Tensor (*)(const at::Tensor&);

/// Returns an elementwise activation without parameters: "gelu", "gelu_new",
/// "silu", "relu", "quick_gelu", ... (activation_names() lists all.)
/// @throws tessera::Error on an unknown name, with the nearest known one.
Activation activation(const std::string& name);

std::vector<std::string> activation_names();

} // namespace tessera::zoo
