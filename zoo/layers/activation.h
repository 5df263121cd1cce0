// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activation functions under the names that transformers gives them.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera::zoo {

using Activation = at::Tensor (*)(const at::Tensor&);

/// The function of an elementwise name without parameters: "gelu", "gelu_new",
/// "silu", "relu", "quick_gelu", ... (activation_names() has all.)
/// @throws tessera::Error naming the nearest for any other.
Activation activation(const std::string& name);

std::vector<std::string> activation_names();

} // namespace tessera::zoo
