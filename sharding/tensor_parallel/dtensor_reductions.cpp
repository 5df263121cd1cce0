// SPDX-License-Identifier: Apache-2.0
// Rules for operators that look along dimensions: sums, means, softmax, norms
// ([Note: DTensors]).
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

/// Computes a function along dimensions that are not divided on the part, else
/// on the whole. The result has the sizes of the input.
template <typename Function>
at::Tensor along(
    const at::Tensor& x,
    const std::vector<int64_t>& dims,
    const Function& function) {
  check_records_no_weight(x, "softmax, norm or triangle");
  const DTensorImpl* wrapper = dtensor(x);
  const bool is_across =
      wrapper != nullptr && wrapper->divided() &&
      std::any_of(dims.begin(), dims.end(), [&](int64_t dim) {
        return at::maybe_wrap_dim(dim, x.dim()) == wrapper->divided()->dim;
      });
  if (wrapper == nullptr || !wrapper->divided() || is_across) {
    const at::Tensor full = full_tensor(x);
    const DTensorGuard parts;
    return function(full);
  }
  const at::Tensor local = local_of(x);
  const DTensorGuard parts;
  return make_dtensor_like(function(local), wrapper->divided()->dim, *wrapper);
}

/// Sums, or means, over `dims`; over all if there are none.
template <typename Sum>
at::Tensor summed(
    const at::Tensor& x,
    at::OptionalIntArrayRef dims,
    bool keeps,
    bool is_mean,
    const Sum& sum) {
  check_records_no_weight(x, is_mean ? "mean" : "sum");
  const DTensorImpl* wrapper = dtensor(x);
  if (wrapper == nullptr || !wrapper->divided()) {
    const at::Tensor full = full_tensor(x);
    const DTensorGuard parts;
    return sum(full, is_mean);
  }
  const int64_t divided_at = wrapper->divided()->dim;
  bool is_across = !dims || dims->empty();
  int64_t before = 0;
  int64_t count = is_across ? x.numel() : 1;
  if (!is_across) {
    for (const int64_t dim : *dims) {
      const int64_t at_dim = at::maybe_wrap_dim(dim, x.dim());
      is_across = is_across || at_dim == divided_at;
      before += at_dim < divided_at ? 1 : 0;
      count *= x.size(at_dim);
    }
  }
  const at::Tensor local = local_of(x);
  const DTensorGuard parts;
  if (!is_across) {
    return make_dtensor_like(
        sum(local, is_mean),
        keeps ? divided_at : divided_at - before,
        *wrapper);
  }
  const at::Tensor total =
      reduce_over_group(sum(local, /*is_mean=*/false), wrapper->group());
  return is_mean ? total / count : total;
}

at::Tensor sum_all(const at::Tensor& x, std::optional<at::ScalarType> dtype) {
  return summed(
      x, std::nullopt, false, false, [&](const at::Tensor& part, bool) {
        return at::sum(part, dtype);
      });
}

at::Tensor mean_all(const at::Tensor& x, std::optional<at::ScalarType> dtype) {
  return summed(
      x, std::nullopt, false, true, [&](const at::Tensor& part, bool is_mean) {
        return is_mean ? at::mean(part, dtype) : at::sum(part, dtype);
      });
}

at::Tensor sum(
    const at::Tensor& x,
    at::OptionalIntArrayRef dims,
    bool keeps,
    std::optional<at::ScalarType> dtype) {
  return summed(x, dims, keeps, false, [&](const at::Tensor& part, bool) {
    return at::sum(part, dims, keeps, dtype);
  });
}

at::Tensor mean(
    const at::Tensor& x,
    at::OptionalIntArrayRef dims,
    bool keeps,
    std::optional<at::ScalarType> dtype) {
  return summed(
      x, dims, keeps, true, [&](const at::Tensor& part, bool is_mean) {
        return is_mean ? at::mean(part, dims, keeps, dtype)
                       : at::sum(part, dims, keeps, dtype);
      });
}

at::Tensor softmax(
    const at::Tensor& x,
    int64_t dim,
    std::optional<at::ScalarType> dtype) {
  return along(x, {dim}, [&](const at::Tensor& part) {
    return at::softmax(part, dim, dtype);
  });
}

at::Tensor log_softmax(
    const at::Tensor& x,
    int64_t dim,
    std::optional<at::ScalarType> dtype) {
  return along(x, {dim}, [&](const at::Tensor& part) {
    return at::log_softmax(part, dim, dtype);
  });
}

at::Tensor tril(const at::Tensor& x, int64_t diagonal) {
  return along(x, {-1, -2}, [&](const at::Tensor& part) {
    return at::tril(part, diagonal);
  });
}

at::Tensor triu(const at::Tensor& x, int64_t diagonal) {
  return along(x, {-1, -2}, [&](const at::Tensor& part) {
    return at::triu(part, diagonal);
  });
}

/// The last `count` dimensions.
std::vector<int64_t> last_dims(size_t count) {
  std::vector<int64_t> dims;
  for (size_t i = 0; i < count; ++i) {
    dims.push_back(-1 - static_cast<int64_t>(i));
  }
  return dims;
}

/// A parameter of a norm, which every rank has whole: where each rank
/// normalizes other tokens, its gradients are summed.
std::optional<at::Tensor> parameter_of(
    const std::optional<at::Tensor>& parameter,
    const at::Tensor& x,
    size_t normalized_dims) {
  const DTensorImpl* wrapper = dtensor(x);
  const bool is_part =
      wrapper != nullptr && wrapper->divided() &&
      -wrapper->dim_from_end() > static_cast<int64_t>(normalized_dims);
  return is_part && parameter && parameter->defined()
             ? shared(*parameter, wrapper->group())
             : parameter;
}

at::Tensor layer_norm(
    const at::Tensor& x,
    at::IntArrayRef shape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool cudnn) {
  return along(x, last_dims(shape.size()), [&](const at::Tensor& part) {
    return at::layer_norm(
        part,
        shape,
        parameter_of(weight, x, shape.size()),
        parameter_of(bias, x, shape.size()),
        eps,
        cudnn);
  });
}

at::Tensor rms_norm(
    const at::Tensor& x,
    at::IntArrayRef shape,
    const std::optional<at::Tensor>& weight,
    std::optional<double> eps) {
  return along(x, last_dims(shape.size()), [&](const at::Tensor& part) {
    return at::rms_norm(
        part, shape, parameter_of(weight, x, shape.size()), eps);
  });
}

} // namespace

void register_reduction_rules(torch::Library& library) {
  library.impl("sum", TORCH_FN(sum_all));
  library.impl("sum.dim_IntList", TORCH_FN(sum));
  library.impl("mean", TORCH_FN(mean_all));
  library.impl("mean.dim", TORCH_FN(mean));
  library.impl("softmax.int", TORCH_FN(softmax));
  library.impl("log_softmax.int", TORCH_FN(log_softmax));
  library.impl("tril", TORCH_FN(tril));
  library.impl("triu", TORCH_FN(triu));
  library.impl("layer_norm", TORCH_FN(layer_norm));
  library.impl("rms_norm", TORCH_FN(rms_norm));
}

} // namespace tessera::sharding
