// SPDX-License-Identifier: Apache-2.0
// Frozen weights that rest in blocks: a run has the bits of one whose frozen
// weights are what the blocks stand for.
#include "engine/twin.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"

#include "tessera/runtime/kernels/block_quantize.h"
#include "tessera/runtime/memory/tensor_bytes.h"
#include "tessera/sharding/groups/frozen_weights.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tessera::tests::frozen_weights_test {

namespace {

constexpr int64_t kFeatures = 48;
constexpr int64_t kVocabulary = 96;

/// A frozen layer with a product of two trained ones beside it.
struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl(int64_t in, int64_t out)
      : base(register_module("base", torch::nn::Linear(in, out))),
        down(register_module(
            "down",
            torch::nn::Linear(torch::nn::LinearOptions(in, 2).bias(false)))),
        up(register_module(
            "up",
            torch::nn::Linear(torch::nn::LinearOptions(2, out).bias(false)))) {
    for (at::Tensor& parameter : base->parameters()) {
      parameter.set_requires_grad(false);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return base(x) + up(down(x));
  }
  torch::nn::Linear base;
  torch::nn::Linear down;
  torch::nn::Linear up;
};
TORCH_MODULE(Adapted);

struct AdaptedBlockImpl : torch::nn::Module {
  AdaptedBlockImpl()
      : up(register_module("up", Adapted(kFeatures, 2 * kFeatures + 1))),
        down(register_module("down", Adapted(2 * kFeatures + 1, kFeatures))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x + down(torch::tanh(up(x)));
  }
  Adapted up;
  Adapted down;
};
TORCH_MODULE(AdaptedBlock);

struct AdaptedModelImpl : torch::nn::Module {
  AdaptedModelImpl()
      : embedding(register_module(
            "embedding",
            torch::nn::Embedding(kVocabulary, kFeatures))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module(
            "head",
            torch::nn::Linear(kFeatures, kVocabulary))) {
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(AdaptedBlock());
    }
    embedding->weight.set_requires_grad(false);
    head->weight.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embedding(ids);
    for (const auto& block : *blocks) {
      x = block->as<AdaptedBlockImpl>()->forward(x);
    }
    return head(x);
  }
  torch::nn::Embedding embedding;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(AdaptedModel);

AdaptedModel make_model() {
  torch::manual_seed(4);
  return AdaptedModel();
}

bool is_base(const std::string& name) {
  return name.find("base.weight") != std::string::npos;
}

/// What the blocks of `weights` stand for, in the type of their use.
at::Tensor expanded(
    const at::Tensor& value,
    FrozenWeights weights,
    at::ScalarType dtype) {
  const runtime::BlockFormat format = *sharding::format_of(weights);
  const at::Tensor flat = value.detach().flatten().to(dtype);
  const at::Tensor blocks =
      torch::zeros({format.bytes(flat.numel())}, at::kByte);
  runtime::encode_blocks_(blocks, flat, format);
  const at::Tensor back = torch::empty_like(flat);
  runtime::decode_blocks_(back, blocks, format);
  return back.to(value.scalar_type()).view(value.sizes());
}

AdaptedModel make_expanded(FrozenWeights weights, at::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  AdaptedModel model = make_model();
  for (const auto& item : model->named_parameters()) {
    if (is_base(item.key())) {
      const at::Tensor value = item.value();
      value.copy_(expanded(value, weights, dtype));
    }
  }
  return model;
}

at::Tensor loss_of(AdaptedModelImpl& model, int step, int rank) {
  torch::manual_seed(100 * step + rank);
  const at::Tensor ids = torch::randint(kVocabulary, {2, 5});
  return torch::nn::functional::cross_entropy(
      model.forward(ids).flatten(0, 1).to(at::kFloat), ids.flatten().roll(1));
}

std::vector<float> train(AdaptedModel& model, Engine& engine, int rank) {
  std::vector<float> losses;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor loss = loss_of(*model, step, rank);
    losses.push_back(loss.item<float>());
    engine.backward(loss);
    engine.step();
  }
  return losses;
}

std::map<std::string, at::Tensor> values_of(Engine& engine) {
  std::map<std::string, at::Tensor> values;
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        values[name] = value.clone();
      });
  return values;
}

void expect_equal(
    const std::map<std::string, at::Tensor>& values,
    const std::map<std::string, at::Tensor>& others) {
  ASSERT_EQ(values.size(), others.size());
  for (const auto& [name, value] : values) {
    EXPECT_TRUE(torch::equal(value, others.at(name))) << name;
  }
}

struct FrozenCase {
  FrozenWeights weights;
  int ranks;
  bool bfloat16 = false;
  bool on_host = false;
  int zero_stage = 3;
};

EngineOptions options_of(const FrozenCase& c) {
  EngineOptions options = group_per_layer();
  options.sharding.zero_stage = c.zero_stage;
  if (c.bfloat16) {
    options.precision.parameters = at::kBFloat16;
  }
  if (c.on_host) {
    options.placement.parameters = MemoryTier::kHost;
    options.memory.host_bytes = int64_t{1} << 30;
  }
  return options;
}

} // namespace

class FrozenWeightsRun : public ::testing::TestWithParam<FrozenCase> {};

TEST_P(FrozenWeightsRun, HasTheBitsOfExpandedWeights) {
  const FrozenCase& c = GetParam();
  run_ranks(c.ranks, [&c](World& world) {
    const at::ScalarType dtype = c.bfloat16 ? at::kBFloat16 : at::kFloat;
    AdaptedModel plain = make_expanded(c.weights, dtype);
    Engine reference = wrap(plain, options_of(c));
    const auto expected = train(plain, reference, world.rank());
    AdaptedModel model = make_model();
    EngineOptions options = options_of(c);
    options.precision.frozen_weights = c.weights;
    Engine engine = wrap(model, options);
    EXPECT_EQ(train(model, engine, world.rank()), expected);
    expect_equal(values_of(engine), values_of(reference));
    for (const auto& page : engine.pager().pages()) {
      const bool has_base = is_base(page->parameters().front().record.name());
      EXPECT_EQ(page->spec().resting_format.has_value(), has_base)
          << page->name();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    FrozenPages,
    FrozenWeightsRun,
    ::testing::Values(
        FrozenCase{FrozenWeights::kNf4, 1},
        FrozenCase{FrozenWeights::kNf4, 2, /*bfloat16=*/true},
        FrozenCase{FrozenWeights::kNf4, 3, true, /*on_host=*/true},
        FrozenCase{FrozenWeights::kNf4, 2, false, false, /*zero_stage=*/1},
        FrozenCase{FrozenWeights::kNf4Double, 1, true},
        FrozenCase{FrozenWeights::kNf4Double, 3},
        FrozenCase{FrozenWeights::kNf4Double, 1, false, /*on_host=*/true},
        FrozenCase{FrozenWeights::kInt8, 2, true},
        FrozenCase{FrozenWeights::kFp8, 3, true, false, /*zero_stage=*/2}));

namespace {

Engine wrap_in_blocks(
    AdaptedModel& model,
    FrozenWeights weights,
    EngineOptions options = group_per_layer()) {
  options.precision.frozen_weights = weights;
  return wrap(model, options);
}

} // namespace

// Steps after a checkpoint are those of an unbroken run, whatever divides the
// pages, and a folder of weights has the same values.
TEST(FrozenPages, CheckpointsHaveWhatTheBlocksStandFor) {
  const TemporaryFolder folder;
  for (const FrozenWeights weights :
       {FrozenWeights::kNf4Double, FrozenWeights::kInt8}) {
    EngineOptions options = group_per_layer();
    options.precision.parameters = at::kBFloat16;
    const std::string name = sharding::name_of(weights);
    run_ranks(2, [&](World& world) {
      AdaptedModel model = make_model();
      Engine engine = wrap_in_blocks(model, weights, options);
      train(model, engine, world.rank());
      engine.save((folder / name).string());
      engine.save_weights((folder / (name + ".safetensors")).string());
    });
    for (const int ranks : {1, 3}) {
      run_ranks(ranks, [&](World&) {
        AdaptedModel model = make_model();
        {
          const torch::NoGradGuard no_grad;
          for (at::Tensor& parameter : model->parameters()) {
            parameter.zero_();
          }
        }
        Engine engine = wrap_in_blocks(model, weights, options);
        engine.load((folder / name).string());
        AdaptedModel fresh = make_model();
        EngineOptions plain = group_per_layer();
        Engine other = wrap(fresh, plain);
        other.load_weights((folder / (name + ".safetensors")).string());
        const auto values = values_of(engine);
        auto expected = values_of(other);
        const AdaptedModel start = make_model();
        for (const auto& item : start->named_parameters()) {
          if (is_base(item.key())) {
            expected[item.key()] =
                expanded(item.value(), weights, at::kBFloat16);
          }
        }
        for (const auto& [key, value] : values) {
          EXPECT_TRUE(torch::equal(
              value.to(at::kFloat), expected.at(key).to(at::kFloat)))
              << key << " of " << name;
        }
      });
    }
  }
}

// What is written is rounded to blocks, on all ranks alike, and the unsharded
// page is not used with the values of before.
TEST(FrozenPages, WrittenValuesAreRoundedToBlocks) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](World&) {
      constexpr auto kWeights = FrozenWeights::kNf4;
      AdaptedModel model = make_model();
      Engine engine = wrap_in_blocks(model, kWeights);
      const at::Tensor weight =
          model->blocks->ptr<AdaptedBlockImpl>(1)->up->base->weight;
      const at::Tensor written = torch::randn(weight.sizes());
      const at::Tensor rounded = expanded(written, kWeights, at::kFloat);
      const at::Tensor ones = torch::ones({1, kFeatures});
      at::linear(ones, weight); // from now on it is unsharded
      {
        auto scope = engine.gather({weight}, {.writable = true});
        weight.copy_(written);
        EXPECT_TRUE(torch::equal(weight, written));
        scope.commit();
      }
      EXPECT_TRUE(
          torch::equal(at::linear(ones, weight), at::linear(ones, rounded)));
      {
        auto scope = engine.gather({weight});
        EXPECT_TRUE(torch::equal(weight, rounded));
      }
      engine.unwrap();
      EXPECT_TRUE(torch::equal(weight, rounded));
    });
  }
}

TEST(FrozenPages, TakeTheMemoryOfTheirBlocks) {
  run_ranks(2, [](World&) {
    const auto bytes = [](FrozenWeights weights) {
      AdaptedModel model = make_model();
      Engine engine = wrap_in_blocks(model, weights);
      int64_t resting = 0;
      for (const auto& page : engine.pager().pages()) {
        if (is_base(page->parameters().front().record.name())) {
          EXPECT_EQ(
              runtime::bytes_of(page->shard().numel(), page->shard().dtype()),
              page->spec().shard_bytes());
          resting += page->spec().shard_bytes();
        }
      }
      return static_cast<double>(resting);
    };
    const double plain = bytes(FrozenWeights::kNone);
    // Of 32 bits; shards of these small layers have padding.
    EXPECT_NEAR(bytes(FrozenWeights::kNf4) / plain, 4.5 / 32, 0.01);
    EXPECT_NEAR(bytes(FrozenWeights::kInt8) / plain, 8.25 / 32, 0.02);
  });
}

// By name: another choice for a layer, an embedding's too, and never what is
// trained.
TEST(FrozenPages, ModulesChooseForThemselves) {
  run_ranks(1, [](World&) {
    AdaptedModel model = make_model();
    EngineOptions options = group_per_layer();
    options.precision.frozen_weights = FrozenWeights::kNf4;
    const auto rule = [](const char* path, FrozenWeights weights) {
      ModuleRule rule;
      rule.path = path;
      rule.options.frozen_weights = weights;
      return rule;
    };
    options.sharding.modules = {
        rule("blocks.0.up.base", FrozenWeights::kNone),
        rule("blocks.1", FrozenWeights::kInt8),
        rule("embedding", FrozenWeights::kFp8)};
    Engine engine = wrap(model, options);
    std::map<std::string, FrozenWeights> chosen;
    for (const auto& page : engine.pager().pages()) {
      for (const auto& parameter : page->parameters()) {
        if (page->spec().resting_format) {
          chosen[parameter.record.name()] = parameter.record.frozen_weights;
        }
      }
    }
    const std::map<std::string, FrozenWeights> expected{
        {"blocks.0.down.base.weight", FrozenWeights::kNf4},
        {"blocks.1.down.base.weight", FrozenWeights::kInt8},
        {"blocks.1.up.base.weight", FrozenWeights::kInt8},
        {"blocks.2.down.base.weight", FrozenWeights::kNf4},
        {"blocks.2.up.base.weight", FrozenWeights::kNf4},
        {"embedding.weight", FrozenWeights::kFp8}};
    EXPECT_EQ(chosen, expected);
  });
}

} // namespace tessera::tests::frozen_weights_test
