// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/pipeline_executor.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/pipeline/make_schedule.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::pipeline::pipeline_executor_test {

namespace {

using Kind = PipelineScheduleKind;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kFeatures = 6;
constexpr int64_t kClasses = 5;

/// One piece of the model: what it passes on is a hidden state, a mask that
/// requires no gradient, and a scale that the first piece makes and the last
/// one uses.
struct ModelChunk {
  ModelChunk(int number, int model_chunks)
      : number(number), last(number == model_chunks - 1) {
    torch::manual_seed(static_cast<uint64_t>(100 + number));
    const auto make = [](at::IntArrayRef sizes) {
      return (torch::randn(sizes, at::kDouble) / 2).requires_grad_();
    };
    weight = make({kFeatures, kFeatures});
    bias = make({kFeatures});
    head = make({kClasses, kFeatures});
  }

  Tensors parameters() const {
    return last || number == 0 ? Tensors{weight, bias, head}
                               : Tensors{weight, bias};
  }

  Tensors forward(int micro_batch, const Tensors& inputs) const {
    const at::Tensor target = torch::arange(4).remainder(kClasses);
    at::Tensor x;
    at::Tensor mask;
    at::Tensor scale;
    if (number == 0) {
      torch::manual_seed(static_cast<uint64_t>(micro_batch));
      x = torch::randn({4, kFeatures}, at::kDouble);
      mask = torch::rand({4, 1}) > 0.3;
      scale = head.sum().sigmoid();
    } else {
      x = inputs[0];
      mask = inputs[1];
      scale = inputs[2];
    }
    x = at::linear(x, weight, bias).tanh().masked_fill(mask, 0.5) + x;
    if (!last) {
      return {x, mask, scale};
    }
    return {at::cross_entropy_loss(at::linear(x * scale, head), target)};
  }

  int number;
  bool last;
  at::Tensor weight, bias, head;
};

std::vector<ModelChunk> all_model_chunks(int model_chunks) {
  std::vector<ModelChunk> made;
  for (int i = 0; i < model_chunks; ++i) {
    made.emplace_back(i, model_chunks);
  }
  return made;
}

struct Reference {
  std::vector<ModelChunk> model_chunks;
  std::vector<double> losses;
};

/// One micro-batch after the other on one rank.
Reference run_alone(const PipelineShape& shape, double loss_scale) {
  Reference reference{all_model_chunks(shape.model_chunks()), {}};
  for (int i = 0; i < shape.micro_batches; ++i) {
    Tensors passed;
    for (const ModelChunk& model_chunk : reference.model_chunks) {
      passed = model_chunk.forward(i, passed);
    }
    reference.losses.push_back(passed[0].item<double>());
    passed[0].backward(
        at::full_like(passed[0], loss_scale / shape.micro_batches));
  }
  return reference;
}

std::unique_ptr<runtime::RingChannels> ring_of_all(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<runtime::RingChannels>(
      world, "pipeline", ranks, at::kCPU);
}

using Setting = std::tuple<Kind, int, int, int>;

class PipelineParity : public ::testing::TestWithParam<Setting> {};

std::string name_of(const ::testing::TestParamInfo<Setting>& info) {
  const auto& [kind, stages, batches, chunks] = info.param;
  std::string name = "unknown";
  for (const auto& [text, value] : pipeline_schedule_names()) {
    if (value == kind) {
      name = text == "zb-h1" ? "zbh1" : text;
    }
  }
  return name + "_stages" + std::to_string(stages) + "_batches" +
         std::to_string(batches) + "_chunks" + std::to_string(chunks);
}

} // namespace

// The order of sums is that of one rank, and so are the bits; but where a piece
// takes backward in two halves, a value that is used twice adds its two
// gradients in another order.
TEST_P(PipelineParity, IsThatOfOneRank) {
  const auto& [kind, stages, batches, chunks] = GetParam();
  const PipelineShape shape{stages, batches, chunks};
  tests::run_ranks(stages, [kind = kind, shape](World& world) {
    const double loss_scale = 3;
    const Reference reference = run_alone(shape, loss_scale);
    const auto channels = ring_of_all(world);
    PipelineExecutor executor(
        make_schedule(kind, shape),
        shape.stages > 1 ? channels.get() : nullptr);
    const std::vector<ModelChunk> model_chunks =
        all_model_chunks(shape.model_chunks());
    const auto local = [&](int chunk) -> const ModelChunk& {
      return model_chunks[static_cast<size_t>(
          shape.model_chunk(world.rank(), chunk))];
    };
    std::vector<int> complete;
    PipelineCallbacks callbacks;
    callbacks.forward = [&](int chunk, int micro_batch, const Tensors& inputs) {
      return local(chunk).forward(micro_batch, inputs);
    };
    callbacks.gradients_complete = [&](int chunk) {
      for (const at::Tensor& parameter : local(chunk).parameters()) {
        EXPECT_TRUE(parameter.grad().defined());
      }
      complete.push_back(chunk);
    };
    // The second step has forms that are known already.
    for (int step = 0; step < 2; ++step) {
      complete.clear();
      for (const ModelChunk& model_chunk : model_chunks) {
        for (at::Tensor parameter : model_chunk.parameters()) {
          parameter.mutable_grad().reset();
        }
      }
      const auto losses = executor.run(callbacks, loss_scale);
      if (world.rank() == shape.stages - 1) {
        ASSERT_EQ(losses.size(), reference.losses.size());
        for (size_t i = 0; i < losses.size(); ++i) {
          EXPECT_EQ(losses[i].item<double>(), reference.losses[i]) << i;
        }
      } else {
        EXPECT_TRUE(losses.empty());
      }
      EXPECT_EQ(complete.size(), static_cast<size_t>(shape.chunks));
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        const int model_chunk = shape.model_chunk(world.rank(), chunk);
        const auto expected =
            reference.model_chunks[static_cast<size_t>(model_chunk)]
                .parameters();
        const auto found = local(chunk).parameters();
        for (size_t i = 0; i < found.size(); ++i) {
          const at::Tensor& a = found[i].grad();
          const at::Tensor& b = expected[i].grad();
          EXPECT_TRUE(
              kind == Kind::kZeroBubble ? a.allclose(b, 1e-12, 1e-14)
                                        : a.equal(b))
              << "piece " << model_chunk << ", parameter " << i;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Matrix,
    PipelineParity,
    ::testing::Values(
        Setting{Kind::kGPipe, 1, 3, 1},
        Setting{Kind::kGPipe, 2, 4, 1},
        Setting{Kind::kGPipe, 4, 3, 1},
        Setting{Kind::kOneForwardOneBackward, 1, 2, 1},
        Setting{Kind::kOneForwardOneBackward, 2, 1, 1},
        Setting{Kind::kOneForwardOneBackward, 2, 5, 1},
        Setting{Kind::kOneForwardOneBackward, 3, 7, 1},
        Setting{Kind::kOneForwardOneBackward, 4, 8, 1},
        Setting{Kind::kInterleaved, 1, 3, 3},
        Setting{Kind::kInterleaved, 2, 4, 2},
        Setting{Kind::kInterleaved, 2, 6, 3},
        Setting{Kind::kInterleaved, 4, 8, 2},
        Setting{Kind::kZeroBubble, 1, 2, 1},
        Setting{Kind::kZeroBubble, 2, 5, 1},
        Setting{Kind::kZeroBubble, 3, 2, 1},
        Setting{Kind::kZeroBubble, 4, 8, 1}),
    name_of);

// Between two steps of training, with other numbers and sizes of micro-batches.
TEST(PipelineExecutor, Evaluates) {
  for (const PipelineShape& shape :
       {PipelineShape{1, 2, 2},
        PipelineShape{2, 2, 1},
        PipelineShape{3, 3, 2}}) {
    tests::run_ranks(shape.stages, [shape](World& world) {
      const std::vector<ModelChunk> model_chunks =
          all_model_chunks(shape.model_chunks());
      const auto channels = ring_of_all(world);
      PipelineExecutor executor(
          make_schedule(
              shape.chunks == 1 ? Kind::kOneForwardOneBackward
                                : Kind::kInterleaved,
              shape),
          shape.stages > 1 ? channels.get() : nullptr);
      const auto model_chunk_of = [&](int chunk) -> const ModelChunk& {
        return model_chunks[static_cast<size_t>(
            shape.model_chunk(world.rank(), chunk))];
      };
      PipelineCallbacks training;
      training.forward = [&](int chunk, int i, const Tensors& inputs) {
        return model_chunk_of(chunk).forward(i, inputs);
      };
      const auto before = executor.run(training);
      // The state that each piece leaves behind, without the loss.
      const auto forward =
          [](const ModelChunk& model_chunk, int i, const Tensors& inputs) {
            const at::Tensor x = inputs.empty()
                                     ? at::ones({1 + i, kFeatures}, at::kDouble)
                                     : inputs[0];
            return Tensors{at::linear(x, model_chunk.weight, model_chunk.bias)};
          };
      constexpr int kMicroBatches = 5;
      const auto found = executor.evaluate(
          [&](int chunk, int i, const Tensors& inputs) {
            return forward(model_chunk_of(chunk), i, inputs);
          },
          kMicroBatches);
      if (world.rank() != shape.stages - 1) {
        EXPECT_TRUE(found.empty());
      } else {
        ASSERT_EQ(found.size(), static_cast<size_t>(kMicroBatches));
        for (int i = 0; i < kMicroBatches; ++i) {
          Tensors expected;
          for (const ModelChunk& model_chunk : model_chunks) {
            expected = forward(model_chunk, i, expected);
          }
          const at::Tensor& result = found[static_cast<size_t>(i)][0];
          EXPECT_TRUE(result.equal(expected[0]));
          EXPECT_FALSE(result.requires_grad());
        }
      }
      const auto after = executor.run(training);
      ASSERT_EQ(after.size(), before.size());
      for (size_t i = 0; i < after.size(); ++i) {
        EXPECT_TRUE(after[i].equal(before[i]));
      }
    });
  }
}

namespace {

PipelineSchedule two_stages() {
  return make_schedule(Kind::kOneForwardOneBackward, {2, 3});
}

/// A first piece whose third micro-batch is shorter, and a last one that takes
/// any.
PipelineCallbacks shrinking(int stage, const at::Tensor& weight) {
  PipelineCallbacks callbacks;
  callbacks.forward = [=](int, int micro_batch, const Tensors& inputs) {
    if (stage == 0) {
      const int64_t rows = micro_batch == 2 ? 1 : 4;
      return Tensors{at::ones({rows, 2}, at::kDouble).matmul(weight)};
    }
    return Tensors{inputs[0].matmul(weight).sum()};
  };
  return callbacks;
}

at::Tensor small_weight() {
  return at::ones({2, 2}, at::kDouble).requires_grad_();
}

} // namespace

TEST(PipelineExecutor, ShapesMayVaryWhenTheyAreSaidTo) {
  tests::run_ranks(2, [](World& world) {
    const auto channels = ring_of_all(world);
    PipelineExecutor executor(
        two_stages(), channels.get(), {.shapes_vary = true});
    const at::Tensor weight = small_weight();
    const auto losses = executor.run(shrinking(world.rank(), weight));
    if (world.rank() == 1) {
      EXPECT_EQ(losses[1].item<double>(), 32);
      EXPECT_EQ(losses[2].item<double>(), 8);
    }
    // Either stage: 9 rows of ones times the sum of the other one's weights.
    EXPECT_TRUE(
        weight.grad().allclose(at::full({2, 2}, 9.0 * 2 / 3, at::kDouble)));
  });
}

TEST(PipelineExecutor, AnotherShapeIsAnErrorOnBothStages) {
  const auto results = tests::run_ranks_expecting(2, [](World& world) {
    const auto channels = ring_of_all(world);
    PipelineExecutor executor(two_stages(), channels.get());
    executor.run(shrinking(world.rank(), small_weight()));
  });
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_NE(results[0].output.find("[4, 2] Double before"), std::string::npos)
      << results[0].output;
  EXPECT_NE(results[0].output.find("shapes_vary"), std::string::npos);
  // The other stage learns that its neighbour is gone, and from where.
  EXPECT_EQ(results[1].exit_code, 3);
  EXPECT_NE(
      results[1].output.find("stage 1, receive of the activation of "
                             "micro-batch 2 on chunk 0 from stage 0"),
      std::string::npos)
      << results[1].output;
}

TEST(PipelineExecutor, ADeadStageIsAnErrorOnTheOthers) {
  const auto results = tests::run_ranks_expecting(3, [](World& world) {
    const auto channels = ring_of_all(world);
    PipelineExecutor executor(
        make_schedule(Kind::kOneForwardOneBackward, {3, 4}), channels.get());
    const at::Tensor weight = small_weight();
    PipelineCallbacks callbacks;
    callbacks.forward = [&](int, int micro_batch, const Tensors& inputs) {
      if (world.rank() == 1 && micro_batch == 2) {
        ::_exit(9);
      }
      const at::Tensor x =
          world.rank() == 0 ? at::ones({1, 2}, at::kDouble) : inputs[0];
      const at::Tensor y = x.matmul(weight);
      return Tensors{world.rank() == 2 ? y.sum() : y};
    };
    executor.run(callbacks);
  });
  EXPECT_EQ(results[1].exit_code, 9);
  for (const size_t stage : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(results[stage].exit_code, 3);
    EXPECT_NE(
        results[stage].output.find("stage " + std::to_string(stage) + ", "),
        std::string::npos)
        << results[stage].output;
  }
}

TEST(PipelineExecutor, NamesWhatDoesNotFit) {
  expect_error(
      [] { PipelineExecutor(two_stages(), nullptr); },
      {"2 stages", "cannot run on 1"});
  PipelineSchedule wrong = make_schedule(Kind::kGPipe, {1, 2});
  wrong.stages[0].pop_back();
  expect_error([&] { PipelineExecutor(wrong, nullptr); }, {"is wrong"});
  expect_error(
      [] {
        PipelineExecutor(make_forward_schedule({1, 2}), nullptr);
      },
      {"forwards only"});
  PipelineExecutor executor(make_schedule(Kind::kGPipe, {1, 2}), nullptr);
  PipelineCallbacks callbacks;
  callbacks.forward = [](int, int, const Tensors&) {
    return Tensors{at::ones({2})};
  };
  expect_error(
      [&] { executor.run(callbacks); }, {"return a loss", "[2] Float"});
}

} // namespace tessera::pipeline::pipeline_executor_test
