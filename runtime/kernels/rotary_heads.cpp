// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/rotary_heads.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/layer_kernels.h"
#include "tessera/runtime/kernels/pack_segments.h"
#include "tessera/runtime/kernels/row_math.h"
#include "tessera/runtime/kernels/target_clones.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace tessera::runtime {

namespace {

using RotatedHeads = std::tuple<at::Tensor, at::Tensor>;
using RotaryOperator = RotatedHeads(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    bool adjacent,
    bool inverse);

// Elements that are worth a thread.
constexpr int64_t kRotaryGrain = int64_t{1} << 14;

/// A row of a table in float32, times `sign`.
template <typename T>
TESSERA_CLONES void widen_table(
    const T* __restrict from,
    float* __restrict to,
    int64_t count,
    float sign) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = row_math::widened(from[i]) * sign;
  }
}

/// Rotates one head of one token.
template <typename T>
TESSERA_CLONES void rotate_halves(
    const T* __restrict x,
    const float* __restrict cosines,
    const float* __restrict sines,
    T* __restrict y,
    int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = row_math::widened(x[i]);
    const float b = row_math::widened(x[half + i]);
    y[i] = row_math::Narrow<T>::of(a * cosines[i] - b * sines[i]);
    y[half + i] = row_math::Narrow<T>::of(b * cosines[i] + a * sines[i]);
  }
}

template <typename T>
TESSERA_CLONES void rotate_adjacent(
    const T* __restrict x,
    const float* __restrict cosines,
    const float* __restrict sines,
    T* __restrict y,
    int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = row_math::widened(x[2 * i]);
    const float b = row_math::widened(x[2 * i + 1]);
    y[2 * i] = row_math::Narrow<T>::of(a * cosines[i] - b * sines[i]);
    y[2 * i + 1] = row_math::Narrow<T>::of(b * cosines[i] + a * sines[i]);
  }
}

template <typename T>
void rotate_tokens(const RotaryHeads& all, int64_t begin, int64_t end) {
  const int64_t half = all.half;
  std::vector<float> tables(static_cast<size_t>(2 * half));
  float* const cosines = tables.data();
  float* const sines = cosines + half;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t batch = i / all.tokens;
    const int64_t token = i % all.tokens;
    const int64_t offset = batch * all.table_stride + token * half;
    widen_table(static_cast<const T*>(all.cosines) + offset, cosines, half, 1);
    widen_table(
        static_cast<const T*>(all.sines) + offset,
        sines,
        half,
        all.inverse ? -1 : 1);
    for (const HeadRows& rows : all.rows) {
      for (int64_t head = 0; head < rows.heads; ++head) {
        const T* x = static_cast<const T*>(rows.x) + batch * rows.x_strides[0] +
                     head * rows.x_strides[1] + token * rows.x_strides[2];
        T* y = static_cast<T*>(rows.y) + batch * rows.y_strides[0] +
               head * rows.y_strides[1] + token * rows.y_strides[2];
        if (all.adjacent) {
          rotate_adjacent(x, cosines, sines, y, half);
        } else {
          rotate_halves(x, cosines, sines, y, half);
        }
        std::copy(x + 2 * half, x + all.features, y + 2 * half);
      }
    }
  }
}

void rotate_on_cpu(const RotaryHeads& all) {
  const auto call = [&all]<typename T>(T) {
    const int64_t per_token =
        (all.rows[0].heads + all.rows[1].heads) * all.features;
    parallel_for(
        0,
        all.batch * all.tokens,
        kRotaryGrain / std::max<int64_t>(per_token, 1) + 1,
        [&all](int64_t begin, int64_t end) {
          rotate_tokens<T>(all, begin, end);
        });
  };
  switch (all.type) {
    case ElementType::kBFloat16:
      call(c10::BFloat16());
      return;
    case ElementType::kFloat16:
      call(c10::Half());
      return;
    default:
      call(float());
  }
}

/// Adjacent features of each head.
at::Tensor with_dense_heads(const at::Tensor& x) {
  return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous();
}

/// Of the sizes of x: a token's heads follow each other, as products with the
/// next weight read them.
at::Tensor by_token(const at::Tensor& x) {
  return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options())
      .transpose(1, 2);
}

HeadRows rows_of(const at::Tensor& x, const at::Tensor& y) {
  return {
      .x = x.const_data_ptr(),
      .y = y.mutable_data_ptr(),
      .heads = x.size(1),
      .x_strides = {x.stride(0), x.stride(1), x.stride(2)},
      .y_strides = {y.stride(0), y.stride(1), y.stride(2)}};
}

template <void (*kKernel)(const RotaryHeads&)>
RotatedHeads rotate_by(
    const at::Tensor& query_,
    const at::Tensor& key_,
    const at::Tensor& cosines_,
    const at::Tensor& sines_,
    bool adjacent,
    bool inverse) {
  const c10::DeviceGuard guard(query_.device());
  const at::Tensor query = with_dense_heads(query_);
  const at::Tensor key = with_dense_heads(key_);
  const at::Tensor cosines = cosines_.contiguous();
  const at::Tensor sines = sines_.contiguous();
  at::Tensor rotated_query = by_token(query);
  at::Tensor rotated_key = by_token(key);
  const int64_t tokens = query.size(2);
  const int64_t half = cosines.size(3);
  if (query.numel() + key.numel() > 0 &&
      !is_dry_memory(rotated_query.const_data_ptr())) {
    kKernel(
        {.type = *detail::element_type(query.scalar_type()),
         .rows = {rows_of(query, rotated_query), rows_of(key, rotated_key)},
         .cosines = cosines.const_data_ptr(),
         .sines = sines.const_data_ptr(),
         .table_stride = cosines.size(0) == 1 ? 0 : tokens * half,
         .batch = query.size(0),
         .tokens = tokens,
         .half = half,
         .features = query.size(3),
         .adjacent = adjacent,
         .inverse = inverse});
  }
  return {rotated_query, rotated_key};
}

RotaryOperator rotate_with_graph;

/// Registers the operator with LibTorch.
void define_rotary_operator() {
  // Never destroyed: graphs may be freed at exit.
  static auto* const library = [] {
    auto* defined = new torch::Library(
        torch::Library::FRAGMENT, "tessera", std::nullopt, __FILE__, __LINE__);
    defined->def(
        "rotate_heads(Tensor query, Tensor key, Tensor cosines, Tensor sines, bool adjacent, bool inverse) -> (Tensor, Tensor)");
    defined->impl(
        "rotate_heads",
        torch::dispatch(c10::DispatchKey::Autograd, &rotate_with_graph));
    defined->impl(
        "rotate_heads",
        torch::dispatch(c10::DispatchKey::CPU, &rotate_by<rotate_on_cpu>));
    defined->impl(
        "rotate_heads",
        torch::dispatch(c10::DispatchKey::CUDA, &rotate_by<rotate_cuda>));
    return defined;
  }();
  static_cast<void>(library);
}

RotatedHeads call_rotate(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    bool adjacent,
    bool inverse) {
  static const auto op = [] {
    define_rotary_operator();
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("tessera::rotate_heads", "")
        .typed<RotaryOperator>();
  }();
  return op.call(query, key, cosines, sines, adjacent, inverse);
}

class RotatedHeadsFunction
    : public torch::autograd::Function<RotatedHeadsFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& cosines,
      const at::Tensor& sines,
      bool adjacent,
      bool inverse) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({cosines, sines});
    context->saved_data["adjacent"] = adjacent;
    context->saved_data["inverse"] = inverse;
    const auto [rotated_query, rotated_key] =
        call_rotate(query, key, cosines, sines, adjacent, inverse);
    return {rotated_query, rotated_key};
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto [query, key] = call_rotate(
        gradients[0],
        gradients[1],
        saved[0],
        saved[1],
        context->saved_data["adjacent"].toBool(),
        !context->saved_data["inverse"].toBool());
    return {query, key, {}, {}, {}, {}};
  }
};

RotatedHeads rotate_with_graph(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    bool adjacent,
    bool inverse) {
  const auto rotated = RotatedHeadsFunction::apply(
      query, key, cosines, sines, adjacent, inverse);
  return {rotated[0], rotated[1]};
}

void check_heads(
    const char* name,
    const at::Tensor& x,
    const at::Tensor& query) {
  TESSERA_CHECK(
      x.dim() == 4 && x.scalar_type() == query.scalar_type() &&
          (x.scalar_type() == at::kFloat ||
           c10::isReducedFloatingType(x.scalar_type())) &&
          x.device() == query.device() && x.size(0) == query.size(0) &&
          x.size(2) == query.size(2) && x.size(3) == query.size(3),
      "rotate_heads: the {} is {} of shape {} on {}, beside a query of {} of shape {} on {}; both must be [batch, heads, tokens, features] of float32, bfloat16 or float16",
      name,
      x.scalar_type(),
      x.sizes(),
      x.device(),
      query.scalar_type(),
      query.sizes(),
      query.device());
}

} // namespace

std::pair<at::Tensor, at::Tensor> rotate_heads(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    bool adjacent) {
  check_heads("query", query, query);
  check_heads("key", key, query);
  for (const at::Tensor& table : {cosines, sines}) {
    TESSERA_CHECK(
        table.dim() == 4 && table.scalar_type() == query.scalar_type() &&
            table.device() == query.device() &&
            (table.size(0) == 1 || table.size(0) == query.size(0)) &&
            table.size(1) == 1 && table.size(2) == query.size(2) &&
            table.sizes() == cosines.sizes() &&
            2 * table.size(3) <= query.size(3) && !table.requires_grad(),
        "rotate_heads: a table is {} of shape {} on {}, for a query of {} of shape {} on {}; it must be [1 or batch, 1, tokens, half] of the same dtype",
        table.scalar_type(),
        table.sizes(),
        table.device(),
        query.scalar_type(),
        query.sizes(),
        query.device());
  }
  const auto [rotated_query, rotated_key] =
      call_rotate(query, key, cosines, sines, adjacent, /*inverse=*/false);
  return {rotated_query, rotated_key};
}

} // namespace tessera::runtime
