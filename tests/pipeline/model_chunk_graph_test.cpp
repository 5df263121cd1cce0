// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/model_chunk_graph.h"
#include "support/expect_error.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::pipeline::model_chunk_graph_test {

namespace {

using Tensors = std::vector<at::Tensor>;
/// (parameters, inputs) -> outputs
using ModelChunk = std::function<Tensors(const Tensors&, const Tensors&)>;

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(sizes, at::kDouble);
}

Tensors leaves(int count, uint64_t seed) {
  Tensors made;
  for (int i = 0; i < count; ++i) {
    made.push_back(
        numbers({4, 4}, seed + static_cast<uint64_t>(i)).requires_grad_());
  }
  return made;
}

struct Gradients {
  Tensors inputs;
  Tensors parameters;
};

Tensors output_gradients(const Tensors& outputs) {
  Tensors gradients;
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) {
      gradients.push_back(numbers(output.sizes(), 50));
    }
  }
  return gradients;
}

Gradients run(const ModelChunk& model_chunk, bool in_halves) {
  const Tensors parameters = leaves(3, 1);
  const Tensors inputs = leaves(2, 20);
  const Tensors outputs = model_chunk(parameters, inputs);
  ModelChunkGraph graph(inputs, outputs);
  if (in_halves) {
    graph.backward_input(output_gradients(outputs));
  } else {
    graph.backward(output_gradients(outputs));
  }
  Gradients found{graph.take_input_gradients(), {}};
  if (in_halves) {
    for (const at::Tensor& parameter : parameters) {
      EXPECT_FALSE(parameter.grad().defined());
    }
    graph.backward_weight();
  }
  for (const at::Tensor& parameter : parameters) {
    found.parameters.push_back(parameter.grad());
  }
  return found;
}

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (a[i].defined()) {
      // Gradients of what is used several times are added in another order.
      EXPECT_TRUE(a[i].allclose(b[i], 1e-13, 1e-13)) << i;
    }
  }
}

const std::map<std::string, ModelChunk> kModelChunks{
    {"matrix products with biases",
     [](const Tensors& p, const Tensors& x) {
       const at::Tensor hidden = at::linear(x[0], p[0], p[2][0]).tanh() + x[1];
       return Tensors{at::gelu(at::linear(hidden, p[1]))};
     }},
    {"a parameter used twice",
     [](const Tensors& p, const Tensors& x) {
       return Tensors{
           at::linear(at::linear(x[0], p[0]).tanh(), p[0]) * x[1] + p[1]};
     }},
    {"a parameter that is prepared before it is used",
     [](const Tensors& p, const Tensors& x) {
       const at::Tensor weight = (p[0] * p[1]).softmax(-1);
       return Tensors{at::linear(at::linear(x[0], weight) + x[1], p[2])};
     }},
    {"norms",
     [](const Tensors& p, const Tensors& x) {
       return Tensors{at::layer_norm(x[0] + x[1], {4}, p[0][0], p[1][0]) * 2};
     }},
    {"several outputs, some of parameters alone, some without gradient",
     [](const Tensors& p, const Tensors& x) {
       return Tensors{
           x[0].matmul(p[0]),
           p[1].exp(),
           x[1].detach(),
           (x[1] * x[0]).matmul(p[2]) + p[1]};
     }},
    {"an input that nothing depends on",
     [](const Tensors& p, const Tensors& x) {
       return Tensors{x[0].matmul(p[0])};
     }},
    {"no input at all",
     [](const Tensors& p, const Tensors&) {
       return Tensors{p[0].matmul(p[1]).sum()};
     }},
    {"an input passed on",
     [](const Tensors& p, const Tensors& x) {
       return Tensors{x[0], x[1].matmul(p[0])};
     }},
};

/// Counts how often its backward runs; a checkpointed block's must not twice.
struct OwnBackward : torch::autograd::Function<OwnBackward> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.matmul(weight);
  }
  static Tensors backward(
      torch::autograd::AutogradContext* context,
      const Tensors& gradients) {
    const auto saved = context->get_saved_variables();
    ++runs;
    return {
        gradients[0].matmul(saved[1].t()), saved[0].t().matmul(gradients[0])};
  }
  static inline int runs = 0;
};

/// Calls of each operator while `action` runs.
std::map<std::string, int> operator_calls(const std::function<void()>& action) {
  static std::map<std::string, int> calls;
  calls.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function)
              -> std::unique_ptr<at::ObserverContext> {
            ++calls[function.name()];
            return nullptr;
          })
          .scopes({at::RecordScope::FUNCTION}));
  action();
  at::removeCallback(handle);
  return calls;
}

} // namespace

TEST(ModelChunkGraph, HalvesGiveTheGradientsOfTheWhole) {
  for (const auto& [name, model_chunk] : kModelChunks) {
    SCOPED_TRACE(name);
    const Gradients full = run(model_chunk, false);
    const Gradients halves = run(model_chunk, true);
    EXPECT_EQ(full.inputs.size(), 2u);
    expect_equal(full.inputs, halves.inputs);
    expect_equal(full.parameters, halves.parameters);
  }
}

TEST(ModelChunkGraph, WholeIsLibTorchsBackward) {
  for (const auto& [name, model_chunk] : kModelChunks) {
    SCOPED_TRACE(name);
    const Tensors parameters = leaves(3, 1);
    const Tensors inputs = leaves(2, 20);
    Tensors roots;
    for (const at::Tensor& output : model_chunk(parameters, inputs)) {
      if (output.requires_grad()) {
        roots.push_back(output);
      }
    }
    torch::autograd::backward(roots, output_gradients(roots));
    const Gradients found = run(model_chunk, false);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(found.inputs[i].equal(
          inputs[i].grad().defined() ? inputs[i].grad()
                                     : at::zeros_like(inputs[i])));
    }
    expect_equal(
        found.parameters,
        {parameters[0].grad(), parameters[1].grad(), parameters[2].grad()});
  }
}

// Two halves multiply as many matrices as the whole, half of them each.
TEST(ModelChunkGraph, HalvesDoNotWorkTwice) {
  const auto products = [](const std::map<std::string, int>& calls) {
    const auto found = calls.find("aten::mm");
    return found == calls.end() ? 0 : found->second;
  };
  const Tensors parameters = leaves(3, 1);
  const Tensors inputs = leaves(2, 20);
  const auto forward = [&] {
    at::Tensor x = inputs[0];
    for (const at::Tensor& weight : parameters) {
      x = at::linear(x, weight, parameters[0][0]).tanh();
    }
    return Tensors{x};
  };
  const Tensors outputs = forward();
  ModelChunkGraph full(inputs, outputs);
  const Tensors gradients = output_gradients(outputs);
  const int in_full =
      products(operator_calls([&] { full.backward(gradients); }));
  ModelChunkGraph halves(inputs, forward());
  const int in_first =
      products(operator_calls([&] { halves.backward_input(gradients); }));
  const int in_second =
      products(operator_calls([&] { halves.backward_weight(); }));
  EXPECT_EQ(in_full, 6);
  EXPECT_EQ(in_first, 3);
  EXPECT_EQ(in_second, 3);
}

TEST(ModelChunkGraph, CustomFunctionsRunOnceInTheFirstHalf) {
  const Tensors parameters = leaves(2, 1);
  const Tensors inputs = leaves(1, 20);
  const Tensors outputs{
      OwnBackward::apply(inputs[0].matmul(parameters[0]), parameters[1])};
  ModelChunkGraph graph(inputs, outputs);
  OwnBackward::runs = 0;
  graph.backward_input(output_gradients(outputs));
  EXPECT_TRUE(parameters[1].grad().defined());
  EXPECT_FALSE(parameters[0].grad().defined());
  const at::Tensor in_first = parameters[1].grad().clone();
  graph.backward_weight();
  EXPECT_EQ(OwnBackward::runs, 1);
  EXPECT_TRUE(parameters[1].grad().equal(in_first));
  EXPECT_TRUE(
      parameters[0].grad().allclose(inputs[0]
                                        .t()
                                        .matmul(output_gradients(outputs)[0])
                                        .matmul(parameters[1].t())));
}

TEST(ModelChunkGraph, HoldsNoOutput) {
  const Tensors parameters = leaves(1, 1);
  const Tensors inputs = leaves(1, 20);
  at::Tensor output = at::linear(inputs[0], parameters[0]) + inputs[0];
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(
      output.storage().getWeakStorageImpl());
  ModelChunkGraph graph(inputs, {output});
  const at::Tensor gradient = numbers(output.sizes(), 3);
  output.reset();
  EXPECT_TRUE(memory.expired());
  graph.backward({gradient});
  EXPECT_TRUE(parameters[0].grad().defined());
}

TEST(ModelChunkGraph, GradientsAccumulate) {
  const Tensors parameters = leaves(1, 1);
  for (int i = 0; i < 2; ++i) {
    const Tensors inputs = leaves(1, 20);
    const Tensors outputs{at::linear(inputs[0], parameters[0])};
    ModelChunkGraph graph(inputs, outputs);
    graph.backward_input({at::ones_like(outputs[0])});
    graph.backward_weight();
  }
  const at::Tensor once =
      at::ones({4, 4}, at::kDouble).matmul(leaves(1, 20)[0].detach());
  EXPECT_TRUE(parameters[0].grad().allclose(2 * once));
}

TEST(ModelChunkGraph, TheSecondHalfNeedsTheFirst) {
  ModelChunkGraph graph({}, leaves(1, 1));
  expect_error([&] { graph.backward_weight(); }, {"before the first"});
}

} // namespace tessera::pipeline::model_chunk_graph_test
