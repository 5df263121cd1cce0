// SPDX-License-Identifier: Apache-2.0
#pragma once
// What stands in `parameter.grad()` once the gradient itself is in a shard.
//
// A token has the parameter's shape and no memory. Autograd's own `add_` on it
// is intercepted and accumulates into the shard; the user's zero_grad() throws
// it away, which is how the engine learns of it; whatever reads it (an
// optimizer of torch::optim, clip_grad_norm_) gets an error naming the
// parameter instead of silently doing nothing.

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

class PageFaultHandler;

/// Where a token belongs.
struct GradientTokenInfo {
  PageFaultHandler* handler = nullptr;
  size_t parameter = 0; ///< index in the handler's parameter list
  std::string parameter_name;
};

/// A token for `parameter`. `info` must outlive it.
at::Tensor make_gradient_token(
    const at::Tensor& parameter,
    GradientTokenInfo& info);

/// The info behind `tensor` or a view of it, or null when it is no token.
GradientTokenInfo* gradient_token_info(const at::Tensor& tensor);

/// Makes the token an ordinary tensor whose use is an error: its engine is
/// gone.
void retire_gradient_token(const at::Tensor& token);

} // namespace tessera
