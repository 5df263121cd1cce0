// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/overlapped_linear.h"

#include "tessera/sharding/collectives/redistribute.h"
#include "tessera/sharding/tensor_parallel/row_exchange.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace tessera::sharding {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// How activations between layers are placed.
tessera::Placement between_layers(const TensorParallel& tp) {
  return tp.sequence ? tessera::Placement(Shard{tp.sequence_dim}) : Replicate{};
}

/// What forward and backward of a function both need.
struct Border : torch::CustomClassHolder {
  explicit Border(const TensorParallel& tp) : tp(tp) {}
  TensorParallel tp;
  /// When entering layers: for each layer, the index of its bias among the
  /// function's tensors, after the activation and all weights; 0 without one.
  std::vector<size_t> biases;
};

constexpr const char* kBorder = "border";

void keep(AutogradContext* context, c10::intrusive_ptr<Border> border) {
  context->saved_data[kBorder] = c10::IValue::make_capsule(std::move(border));
}

const Border& kept(AutogradContext* context) {
  return *c10::static_intrusive_pointer_cast<Border>(
      context->saved_data[kBorder].toCapsule());
}

bool is_plain(const at::Tensor& x, const TensorParallel& tp) {
  return tp.group->size() == 1 ||
         at::autocast::is_autocast_enabled(x.device().type());
}

/// out = a W^T + b, for matrices.
void multiply(at::Tensor out, const at::Tensor& a, const LinearWeights& layer) {
  if (layer.bias.defined()) {
    at::addmm_out(out, layer.bias, a, layer.weight.t());
  } else {
    at::mm_out(out, a, layer.weight.t());
  }
}

at::Tensor matrix(int64_t rows, int64_t columns, const at::Tensor& like) {
  return at::empty({rows, columns}, like.options());
}

struct EnterLinear : torch::autograd::Function<EnterLinear> {
  /// Gradients of the input and of the weights can be requested separately
  /// ([Note: backward in two halves]).
  static constexpr bool is_traceable = true;

  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& between,
      at::TensorList parameters,
      const c10::intrusive_ptr<Border>& border) {
    std::vector<LinearWeights> layers;
    for (const size_t bias : border->biases) {
      layers.push_back(
          {parameters[layers.size()],
           bias == 0 ? at::Tensor() : parameters[bias - 1]});
    }
    const RowExchange exchange(between, border->tp);
    const at::Tensor local = exchange.rows_of_part(between);
    variable_list results;
    for (const LinearWeights& layer : layers) {
      results.push_back(
          matrix(exchange.full_rows(), layer.weight.size(0), local));
    }
    exchange.gather_chunks(
        local, [&](const Rows& rows, const at::Tensor& chunk) {
          for (size_t i = 0; i < layers.size(); ++i) {
            multiply(rows.of(results[i]), chunk, layers[i]);
          }
        });
    for (at::Tensor& result : results) {
      result = exchange.full_shaped(result);
    }
    variable_list saved{between};
    for (const LinearWeights& layer : layers) {
      saved.push_back(layer.weight);
    }
    context->save_for_backward(std::move(saved));
    keep(context, border);
    return results;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const Border& border = kept(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& between = saved[0];
    if (at::GradMode::is_enabled()) {
      return differentiable(gradients, saved, border);
    }
    bool wants_weights = false;
    for (size_t i = 1; i < saved.size(); ++i) {
      wants_weights = wants_weights || context->needs_input_grad(i);
    }
    const RowExchange exchange(between, border.tp);
    RowExchange::Gathered entered;
    if (wants_weights) {
      entered = exchange.gather(exchange.rows_of_part(between));
    }
    variable_list of_results;
    for (const at::Tensor& gradient : gradients) {
      of_results.push_back(exchange.rows_of_full(gradient));
    }
    variable_list result = no_gradients(border);
    RowExchange::Reduced input;
    if (context->needs_input_grad(0)) {
      input = exchange.reduce_chunks(
          between.size(-1), between, [&](const Rows& rows, at::Tensor& chunk) {
            for (size_t i = 0; i < of_results.size(); ++i) {
              const at::Tensor local = rows.of(of_results[i]);
              if (i == 0) {
                at::mm_out(chunk, local, saved[1]);
              } else {
                chunk.addmm_(local, saved[i + 1]);
              }
            }
          });
    }
    const at::Tensor full = wants_weights ? entered.wait() : at::Tensor();
    for (size_t i = 0; i < of_results.size(); ++i) {
      if (context->needs_input_grad(i + 1)) {
        result[i + 1] = of_results[i].t().mm(full);
      }
      const size_t bias = border.biases[i];
      if (bias != 0 && context->needs_input_grad(bias)) {
        result[bias] = of_results[i].sum(0);
      }
    }
    if (context->needs_input_grad(0)) {
      result[0] = exchange.part_shaped(input.wait());
    }
    return result;
  }

 private:
  /// Returns an undefined gradient for every argument of forward().
  static variable_list no_gradients(const Border& border) {
    size_t tensors = 1 + border.biases.size();
    for (const size_t bias : border.biases) {
      tensors += bias == 0 ? 0 : 1;
    }
    return variable_list(tensors + 1);
  }

  /// Computes the same with operators that autograd knows.
  static variable_list differentiable(
      const variable_list& gradients,
      const variable_list& saved,
      const Border& border) {
    const at::Tensor entered = enter_layer(saved[0], border.tp).flatten(0, -2);
    variable_list result = no_gradients(border);
    at::Tensor input;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor rows = gradients[i].flatten(0, -2);
      result[i + 1] = rows.t().mm(entered);
      if (border.biases[i] != 0) {
        result[border.biases[i]] = rows.sum(0);
      }
      const at::Tensor part = gradients[i].matmul(saved[i + 1]);
      input = input.defined() ? input + part : part;
    }
    result[0] = leave_layer(input, border.tp);
    return result;
  }
};

struct LeaveLinear : torch::autograd::Function<LeaveLinear> {
  static constexpr bool is_traceable = true; ///< as in EnterLinear

  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& features,
      const at::Tensor& weight,
      const c10::intrusive_ptr<Border>& border) {
    context->save_for_backward({features, weight});
    keep(context, border);
    const RowExchange exchange =
        RowExchange::of_full(features, border->tp, "leave_linear");
    const at::Tensor full = exchange.rows_of_full(features);
    return exchange.part_shaped(
        exchange
            .reduce_chunks(
                weight.size(0),
                features,
                [&](const Rows& rows, at::Tensor& chunk) {
                  multiply(chunk, rows.of(full), {weight, {}});
                })
            .wait());
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const TensorParallel& tp = kept(context).tp;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& features = saved[0];
    const at::Tensor& weight = saved[1];
    if (at::GradMode::is_enabled()) {
      const at::Tensor full = enter_layer(gradients[0], tp);
      return {
          full.matmul(weight),
          full.flatten(0, -2).t().mm(features.flatten(0, -2)),
          at::Tensor()};
    }
    const RowExchange exchange =
        RowExchange::of_full(features, tp, "leave_linear");
    const at::Tensor local = exchange.rows_of_part(gradients[0]);
    const bool wants_input = context->needs_input_grad(0);
    const bool wants_weight = context->needs_input_grad(1);
    at::Tensor input;
    if (wants_input) {
      input = matrix(exchange.full_rows(), weight.size(1), local);
    }
    at::Tensor full;
    exchange.gather_chunks(
        local, [&](const Rows& rows, const at::Tensor& chunk) {
          if (wants_input) {
            at::Tensor out = rows.of(input);
            at::mm_out(out, chunk, weight);
          }
          if (!wants_weight) {
            return;
          }
          if (chunk.size(0) == exchange.full_rows()) {
            full = chunk;
            return;
          }
          if (!full.defined()) {
            full = matrix(exchange.full_rows(), chunk.size(1), chunk);
          }
          rows.of(full).copy_(chunk);
        });
    return {
        wants_input ? exchange.full_shaped(input) : at::Tensor(),
        wants_weight ? full.t().mm(exchange.rows_of_full(features))
                     : at::Tensor(),
        at::Tensor()};
  }
};

} // namespace

at::Tensor enter_layer(const at::Tensor& between, const TensorParallel& tp) {
  return redistribute(between, between_layers(tp), Shared{}, *tp.group);
}

at::Tensor leave_layer(const at::Tensor& partial, const TensorParallel& tp) {
  return redistribute(partial, Partial{}, between_layers(tp), *tp.group);
}

std::vector<at::Tensor> enter_linear(
    const at::Tensor& between,
    const std::vector<LinearWeights>& layers,
    const TensorParallel& tp) {
  if (is_plain(between, tp)) {
    const at::Tensor entered = enter_layer(between, tp);
    std::vector<at::Tensor> results;
    for (const LinearWeights& layer : layers) {
      results.push_back(at::linear(entered, layer.weight, layer.bias));
    }
    return results;
  }
  const auto border = c10::make_intrusive<Border>(tp);
  variable_list parameters;
  for (const LinearWeights& layer : layers) {
    parameters.push_back(layer.weight);
  }
  for (const LinearWeights& layer : layers) {
    if (layer.bias.defined()) {
      parameters.push_back(layer.bias);
    }
    border->biases.push_back(layer.bias.defined() ? parameters.size() : 0);
  }
  return EnterLinear::apply(between, at::TensorList(parameters), border);
}

at::Tensor leave_linear(
    const at::Tensor& features,
    const at::Tensor& weight,
    const TensorParallel& tp) {
  if (is_plain(features, tp)) {
    return leave_layer(at::linear(features, weight), tp);
  }
  return LeaveLinear::apply(features, weight, c10::make_intrusive<Border>(tp));
}

} // namespace tessera::sharding
