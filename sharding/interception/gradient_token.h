// SPDX-License-Identifier: Apache-2.0
#pragma once
// A gradient token stands in `parameter.grad()` once the gradient itself is in
// a bucket.
//
// A token has the parameter's shape and no memory. Autograd's own `add_` on it
// is intercepted and accumulates into the bucket; a user's zero_grad() removes
// it, which is how the engine notices; any operator that reads it (an optimizer
// of torch::optim, clip_grad_norm_) gets an error that names the parameter,
// instead of silently doing nothing.

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera::sharding {

class PageFaultHandler;

/// The parameter that a token stands for.
struct GradientTokenInfo {
  PageFaultHandler* handler = nullptr;
  size_t parameter = 0; ///< index in the handler's parameter list
  std::string parameter_name;
};

/// Makes a token for `parameter`. `info` must outlive it.
at::Tensor make_gradient_token(
    const at::Tensor& parameter,
    GradientTokenInfo& info);

/// Returns the info of `tensor` or of the token of which it is a view, or null
/// if it is not a token.
GradientTokenInfo* gradient_token_info(const at::Tensor& tensor);

/// Turns the token into an ordinary tensor whose use is an error, because its
/// engine no longer exists.
void retire_gradient_token(const at::Tensor& token);

} // namespace tessera::sharding
