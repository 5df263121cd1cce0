// SPDX-License-Identifier: Apache-2.0
// What models recompute in backward: the same bits for less memory, with
// dropout, and with inputs divided over tensor-parallel ranks.
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/layout_subjects.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <stdexcept>
#include <string>

namespace tessera::zoo::recomputation_test {

namespace {

constexpr uint64_t kSeed = 5;

struct Trained {
  std::map<std::string, at::Tensor> parameters; ///< after two steps
  double loss = 0; ///< of the last step
  int64_t kept_bytes = 0; ///< between forward and backward of the last step
};

Trained train(
    World& world,
    const Subject& subject,
    const ParallelOptions& layout,
    const Recomputation& again,
    const EngineOptions& given) {
  ParallelRun parallel(world, layout, /*accumulate=*/1);
  torch::manual_seed(kSeed);
  const auto model = lazy([&] {
    return from_config(
        nlohmann::json::parse(subject.config),
        {.architecture = subject.architecture,
         .context = fresh_layer_context(parallel)});
  });
  init_parameters(*model, kSeed);
  model->train();
  model->recompute(again);
  EngineOptions options = given;
  options.log_memory = false;
  options.optimizer.lr = 1e-2;
  options.parallel = parallel.mesh_or_null();
  Engine engine(world, model, options);
  Trained trained;
  for (int step = 0; step < 2; ++step) {
    const ModelInput input = batch_of(subject, step, 0, /*is_padded=*/true);
    const RandomKeyScope random({kSeed, step, 0}, at::kCPU);
    const int64_t before = runtime::cpu_bytes_live();
    const at::Tensor loss = model->forward(input).loss;
    trained.kept_bytes = runtime::cpu_bytes_live() - before;
    engine.backward(loss);
    engine.step();
    trained.loss = loss.item<double>();
  }
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        trained.parameters[name] = value.clone();
      });
  return trained;
}

void expect_same_bits(const Trained& expected, const Trained& found) {
  EXPECT_EQ(expected.loss, found.loss);
  ASSERT_EQ(expected.parameters.size(), found.parameters.size());
  for (const auto& [name, value] : expected.parameters) {
    EXPECT_TRUE(value.equal(found.parameters.at(name))) << name;
  }
}

const Subject& subject_of(const std::string& name) {
  for (const Subject& subject : kSubjects) {
    if (subject.name == name) {
      return subject;
    }
  }
  throw std::runtime_error(name);
}

} // namespace

TEST(Recomputation, OfPartsKeepsTheBits) {
  tests::run_ranks(1, [](World& world) {
    runtime::install_cpu_memory_counter();
    for (const char* name :
         {"gpt",
          "llama",
          "bert",
          "roformer",
          "longformer_classifier",
          "t5",
          "qwen3_moe",
          "swin"}) {
      SCOPED_TRACE(name);
      const Subject& subject = subject_of(name);
      const Trained plain = train(world, subject, {}, {}, {});
      const Trained attention =
          train(world, subject, {}, {.attention = true}, {});
      expect_same_bits(plain, attention);
      // Attention over few keys, or without dropout, keeps little more than its
      // arguments.
      const bool saves = subject.name != std::string("longformer_classifier") &&
                         subject.name != std::string("qwen3_moe");
      if (saves) {
        EXPECT_LT(attention.kept_bytes, plain.kept_bytes);
      }
      EngineOptions options;
      options.recompute_operators = true;
      const Trained operators = train(world, subject, {}, {}, options);
      expect_same_bits(plain, operators);
      EXPECT_LT(operators.kept_bytes, plain.kept_bytes);
      // A layer's inputs on the host, attention and operators of the others.
      options.placement.activations = MemoryTier::kHost;
      options.offload.min_tensor_bytes = 0;
      options.offload.activation_host_bytes = int64_t{1} << 26;
      expect_same_bits(
          plain,
          train(world, subject, {}, {.layers = 2, .attention = true}, options));
    }
  });
}

TEST(Recomputation, DividesInputsOverTensorRanks) {
  tests::run_ranks(2, [](World& world) {
    runtime::install_cpu_memory_counter();
    const Subject& subject = subject_of("gpt");
    const ParallelOptions layout{{.shard = 1, .tensor = 2}};
    const Recomputation full{.layers = 5};
    const Recomputation divided{.layers = 5, .divide_inputs = true};
    EngineOptions host;
    host.placement.activations = MemoryTier::kHost;
    host.offload.min_tensor_bytes = 0;
    host.offload.activation_host_bytes = int64_t{1} << 26;
    const Trained expected = train(world, subject, layout, full, {});
    const Trained found = train(world, subject, layout, divided, {});
    expect_same_bits(expected, found);
    expect_same_bits(expected, train(world, subject, layout, divided, host));
    // Half of the inputs of five layers, and a little for what gathers them.
    const int64_t input_bytes =
        batch_of(subject, 0, 0, true).input_ids.numel() * 12 * 4;
    EXPECT_GT(
        expected.kept_bytes - found.kept_bytes, 5 * input_bytes / 2 - 5 * 64);
    // Ranks that divide sequences have divided them in any case.
    const ParallelOptions sequence{{.shard = 1, .tensor = 2}, true};
    const Trained apart = train(world, subject, sequence, full, {});
    const Trained same = train(world, subject, sequence, divided, {});
    expect_same_bits(apart, same);
    EXPECT_EQ(apart.kept_bytes, same.kept_bytes);
  });
}

} // namespace tessera::zoo::recomputation_test
