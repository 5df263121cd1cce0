// SPDX-License-Identifier: Apache-2.0
// Checkpointed blocks in an engine: the plain run's numbers, one gather per
// block and pass, one reduction per block and step.
#include "engine/parity.h"
#include "engine/twin.h"
#include "support/ranks.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"
#include "tessera/sharding/paging/pager.h"

#include <cmath>

namespace tessera::engine::checkpoint_block_test {

namespace {

using namespace tests;

constexpr int64_t kVocabulary = 23;
constexpr int64_t kDim = 12;

/// A pre-norm transformer block with causal attention and dropout.
struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : norm1(torch::nn::LayerNormOptions({kDim})),
        norm2(torch::nn::LayerNormOptions({kDim})),
        qkv(kDim, 3 * kDim),
        out(kDim, kDim),
        up(kDim, 2 * kDim),
        down(2 * kDim, kDim),
        drop(0.1) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
    register_module("drop", drop);
  }
  /// @param mask [time, time], added to the scores; may be undefined.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(1, 2)) /
                        std::sqrt(static_cast<double>(kDim));
    if (mask.defined()) {
      scores = scores + mask.to(scores.scalar_type());
    }
    const at::Tensor attention = drop(scores.softmax(-1));
    const at::Tensor y = x + drop(out(torch::matmul(attention, parts[2])));
    return y + drop(down(torch::gelu(up(norm2(y)))));
  }
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(Layer);

struct Shape {
  bool use_checkpoint = true;
  size_t blocks_per_checkpoint = 1;
  bool tied = false; ///< embedding and head
  bool embedding = true; ///< else the blocks are the first thing touched
  bool frozen_half = false; ///< the first two blocks and the embedding
};

struct GptImpl : torch::nn::Module {
  explicit GptImpl(Shape shape_) : shape(shape_) {
    if (shape.embedding) {
      embed = register_module("embed", torch::nn::Embedding(kVocabulary, kDim));
    }
    std::vector<Layer> blocks;
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(Layer());
    }
    layers = register_module(
        "layers",
        TransformerBlockList<Layer>(
            blocks,
            {.use_checkpoint = shape.use_checkpoint},
            shape.blocks_per_checkpoint));
    if (!shape.tied) {
      head = register_module("head", torch::nn::Linear(kDim, kVocabulary));
    }
    if (shape.frozen_half) {
      for (const auto& parameter : parameters_of_frozen_half()) {
        parameter.set_requires_grad(false);
      }
    }
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor x = shape.embedding
                             ? embed(tokens)
                             : torch::one_hot(tokens, kDim).to(torch::kFloat);
    const auto time = tokens.size(1);
    const at::Tensor mask =
        torch::full({time, time}, -1e4).triu(/*diagonal=*/1);
    const at::Tensor y = layers(x, mask);
    return shape.tied ? torch::nn::functional::linear(y, embed->weight)
                      : head(y);
  }
  std::vector<at::Tensor> parameters_of_frozen_half() {
    auto frozen = embed->parameters();
    for (int i = 0; i < 2; ++i) {
      const auto block = layers->block(i)->parameters();
      frozen.insert(frozen.end(), block.begin(), block.end());
    }
    return frozen;
  }
  Shape shape;
  torch::nn::Embedding embed = nullptr;
  TransformerBlockList<Layer> layers = nullptr;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(Gpt);

/// The plain copies compute nothing again.
Subject<Gpt> subject_of(Shape shape) {
  return {
      [shape] { return Gpt(shape); },
      [](Gpt& model, int64_t part, int64_t parts) {
        const auto tokens = torch::randint(kDim, {6, 5}).chunk(parts)[part];
        return torch::nn::functional::cross_entropy(
            model(tokens).reshape({-1, kVocabulary}), tokens.reshape({-1}));
      },
      [shape] {
        Shape plain = shape;
        plain.use_checkpoint = false;
        return Gpt(plain);
      }};
}

struct Case {
  std::string name;
  Shape shape;
};

std::vector<Case> cases() {
  return {
      {"Plain", {.use_checkpoint = false}},
      {"EachBlock", {}},
      {"TwoTogether", {.blocks_per_checkpoint = 2}},
      {"ThreeTogether", {.blocks_per_checkpoint = 3}},
      {"Tied", {.tied = true}},
      {"BlocksFirst", {.embedding = false}},
      {"FrozenHalf", {.frozen_half = true}},
  };
}

void train_step(
    Engine& engine,
    Gpt& model,
    const Subject<Gpt>& subject,
    int n) {
  for (int micro = 0; micro < n; ++micro) {
    engine.backward(subject.loss(model, 0, 1));
  }
  engine.step();
}

} // namespace

class CheckpointBlockTest
    : public ::testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(CheckpointBlockTest, TenStepsEqualThePlainRun) {
  const auto& [test, ranks] = GetParam();
  run_ranks(ranks, [&test = test](World& world) {
    auto options = parity_options(world, 0);
    expect_parity(world, subject_of(test.shape), options, test.name);
    options.engine.sharding.groups.min_group_numel = 100'000;
    options.micro_batches = 2;
    expect_parity(world, subject_of(test.shape), options, test.name);
  });
}

namespace {

/// @param min_group_numel 0 for a group per block; 2000 for two blocks each,
///   whose gradients come from two recomputations.
void expect_planned_traffic(
    World& world,
    const Shape& shape,
    int64_t min_group_numel,
    int micro_batches) {
  const auto subject = subject_of(shape);
  subject.make(); // the plain one
  Gpt model = subject.make();
  auto engine = wrap(model, parity_options(world, min_group_numel).engine);
  int64_t trainable = 0;
  for (const auto& group : engine.pager().pages()) {
    trainable += group->trainable() ? 1 : 0;
  }
  train_step(engine, model, subject, micro_batches);
  const auto first = engine.stats().paging;
  EXPECT_GT(first.on_demand_unshards, 0); // the step that is recorded
  for (int step = 0; step < 3; ++step) {
    train_step(engine, model, subject, micro_batches);
  }
  const auto later = engine.stats().paging;
  const std::string label = std::to_string(micro_batches) +
                            " micro-batches, groups of at least " +
                            std::to_string(min_group_numel);
  EXPECT_EQ(later.on_demand_unshards, first.on_demand_unshards) << label;
  EXPECT_EQ(later.reductions - first.reductions, 3 * micro_batches * trainable)
      << label;
  // A block once in forward and once in backward, a segment of several once
  // more each; nothing else more than that.
  const auto groups = static_cast<int64_t>(engine.pager().pages().size());
  const int passes = shape.blocks_per_checkpoint == 1 ? 2 : 3;
  EXPECT_LE(
      later.planned_unshards - first.planned_unshards,
      3 * micro_batches * passes * groups)
      << label;
}

} // namespace

TEST_P(CheckpointBlockTest, NoGatherOnDemandAndOneReductionPerGroup) {
  const auto& [test, ranks] = GetParam();
  if (ranks == 1) {
    return; // nothing is gathered
  }
  run_ranks(ranks, [&test = test](World& world) {
    expect_planned_traffic(world, test.shape, 0, 2);
    expect_planned_traffic(world, test.shape, 2000, 1);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Blocks,
    CheckpointBlockTest,
    ::testing::Combine(
        ::testing::ValuesIn(cases()),
        ::testing::Values(1, 2, 3)),
    [](const auto& info) {
      return std::get<0>(info.param).name + "On" +
             std::to_string(std::get<1>(info.param));
    });

TEST(CheckpointBlock, EvaluationBetweenSteps) {
  run_ranks(2, [](World& world) {
    auto options = parity_options(world, 0);
    const auto subject = subject_of({.embedding = false});
    torch::manual_seed(1);
    Gpt plain = subject.make_plain();
    torch::manual_seed(1);
    Gpt wrapped = subject.make();
    auto engine = wrap(wrapped, options.engine);
    for (int step = 0; step < 4; ++step) {
      const auto evaluate = [&](Gpt& model) {
        const c10::NoGradGuard no_grad;
        torch::manual_seed(50 + step);
        return subject.loss(model, 0, 1);
      };
      if (step == 0) {
        expect_same(
            evaluate(wrapped), evaluate(plain), 0, 1, "before training");
      } else {
        evaluate(wrapped);
      }
      const auto before = engine.stats().paging.on_demand_unshards;
      train_step(engine, wrapped, subject, 1);
      if (step > 1) {
        EXPECT_EQ(engine.stats().paging.on_demand_unshards, before) << step;
      }
    }
  });
}

namespace {

/// Losses of five steps with gradient accumulation.
std::vector<double> losses_of(Shape shape, const EngineOptions& options) {
  torch::manual_seed(1);
  Gpt model(shape);
  const auto subject = subject_of(shape);
  auto engine = wrap(model, options);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      torch::manual_seed(10 * step + micro);
      const at::Tensor loss = subject.loss(model, 0, 1);
      losses.push_back(loss.item<double>());
      engine.backward(loss);
    }
    engine.step();
  }
  return losses;
}

} // namespace

TEST(CheckpointBlock, SameLossesInEveryStageAndPrecision) {
  const std::vector<std::pair<int, std::optional<at::ScalarType>>> cases{
      {1, {}}, {2, {}}, {3, {}}, {3, at::kBFloat16}, {2, at::kHalf}};
  run_ranks(2, [&cases](World& world) {
    for (const auto& [zero_stage, dtype] : cases) {
      auto options = parity_options(world, 0).engine;
      options.sharding.zero_stage = zero_stage;
      options.precision.parameters = dtype;
      EXPECT_EQ(
          losses_of({.use_checkpoint = true}, options),
          losses_of({.use_checkpoint = false}, options))
          << "stage " << zero_stage << ", "
          << (dtype ? c10::toString(*dtype) : "the module's own type");
    }
  });
}

TEST(CheckpointBlock, AFailedRecomputationDoesNotSpoilTheNextBackward) {
  run_ranks(2, [](World& world) {
    struct FlakyImpl : torch::nn::Module {
      FlakyImpl() : layer(register_module("layer", torch::nn::Linear(6, 6))) {}
      at::Tensor forward(const at::Tensor& x) {
        TESSERA_CHECK(++calls != 2, "on purpose");
        return layer(x);
      }
      torch::nn::Linear layer;
      int calls = 0;
    };
    struct NetImpl : torch::nn::Module {
      NetImpl()
          : block(std::make_shared<FlakyImpl>()),
            head(register_module("head", torch::nn::Linear(6, 1))) {
        register_module("block", block);
      }
      CheckpointBlock<torch::nn::ModuleHolder<FlakyImpl>> block;
      torch::nn::Linear head;
    };
    torch::manual_seed(1);
    const auto net = std::make_shared<NetImpl>();
    auto engine = wrap(
        std::shared_ptr<torch::nn::Module>(net),
        parity_options(world, 0).engine);
    const at::Tensor x = torch::ones({2, 6});
    const auto loss = [&] { return net->head(net->block(x)).sum(); };
    expect_throws([&] { engine.backward(loss()); }, {"on purpose"});
    engine.zero_grad();
    engine.backward(loss());
    // d loss / d bias of the head: two rows of one.
    EXPECT_EQ(engine.grad(net->head->bias).item<float>(), 2);
    engine.step();
  });
}

} // namespace tessera::engine::checkpoint_block_test
