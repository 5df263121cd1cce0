// SPDX-License-Identifier: Apache-2.0
// MoCo v3 beyond one batch on one rank: keys of all ranks, the encoder that
// follows, and what is kept of it.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/zoo/vision/moco_model.h"
#include "zoo/model_fixture.h"

namespace tessera::zoo::moco_test {
namespace {

using tests::run_ranks;

std::shared_ptr<MocoModel> load(const ModelFixture& reference, bool lazy) {
  return std::dynamic_pointer_cast<MocoModel>(
      from_pretrained(reference.folder(), {.lazy = lazy}));
}

ModelInput rows(const ModelInput& input, int64_t first, int64_t count) {
  ModelInput some = input;
  some.pixel_values = input.pixel_values.narrow(0, first, count);
  torch::Tensor& second = some.others.at("second_pixel_values");
  second = second.narrow(0, first, count);
  return some;
}

} // namespace

// Half of the batch each: losses and gradients, averaged over the ranks, are
// those of the whole batch on one.
TEST(Moco, FindsKeysAmongThoseOfAllRanks) {
  run_ranks(2, [](World& world) {
    ParallelGroups groups(
        world, ParallelMesh({.shard = 2}, 2, 2), torch::Device(torch::kCPU));
    const ModelFixture reference("moco");
    const auto model = load(reference, false);
    Communicator& batches = groups[ParallelGroup::kBatches];
    model->gather_over(&batches);
    const ModelOutput output =
        model->forward(rows(reference.input(), 4 * world.rank(), 4));
    output.loss.backward();
    const auto averaged = [&](const torch::Tensor& own) {
      return sharding::reduce_over_group(own.detach(), batches) / 2;
    };
    expect_near(
        averaged(output.loss.detach()), reference.tensors("out.").at("loss"));
    expect_gradients(reference, *model, [&](const torch::Tensor& parameter) {
      return averaged(parameter.grad());
    });
  });
}

TEST(Moco, BeginsWithTwoEqualEncoders) {
  const auto config = read_json(fixture("models") / "moco" / "config.json");
  const auto model = std::dynamic_pointer_cast<MocoModel>(from_config(config));
  const auto parameters = model->named_parameters();
  size_t compared = 0;
  for (const auto& item : parameters) {
    const auto* second = parameters.find("momentum." + item.key());
    if (second != nullptr) {
      EXPECT_TRUE(second->equal(item.value())) << item.key();
      EXPECT_FALSE(second->requires_grad()) << item.key();
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2 * 16 + 6 + 7); // layers, around them, projection
  EXPECT_FALSE(parameters["embeddings.projection.weight"].requires_grad());
  EXPECT_FALSE(parameters["embeddings.positions"].requires_grad());
  EXPECT_TRUE(parameters["embeddings.class_token"].requires_grad());
}

TEST(Moco, FollowsByAScheduleOfHalfACosine) {
  const ModelFixture reference("moco"); // momentum 0.9
  const auto model = load(reference, false);
  EXPECT_DOUBLE_EQ(model->momentum_at(0, 10), 0.9);
  EXPECT_DOUBLE_EQ(model->momentum_at(5, 10), 0.95);
  EXPECT_DOUBLE_EQ(model->momentum_at(10, 10), 1.0);
  expect_error([&] { model->momentum_at(11, 10); }, {"step 11 of 10"});
  const auto parameters = model->named_parameters();
  const char* name = "layers.1.attention.query.weight";
  const torch::Tensor first = parameters[name];
  const torch::Tensor second = parameters["momentum." + std::string(name)];
  const torch::Tensor expected = 0.75 * second + 0.25 * first.detach();
  const torch::Tensor fixed =
      parameters["momentum.embeddings.positions"].clone();
  model->update_momentum(0.75);
  expect_near(second, expected);
  EXPECT_TRUE(parameters["momentum.embeddings.positions"].equal(fixed));
}

// One step of SGD (AdamW would make steps of rounding errors) and of the
// momentum: the folder has the same numbers, whether two ranks divide the
// parameters or one has them all.
TEST(Moco, FollowsWhereRanksDivideParameters) {
  const TemporaryFolder folder;
  const auto train = [&](World& world, const std::filesystem::path& to) {
    const ModelFixture reference("moco");
    const auto model = load(reference, true);
    EngineOptions options;
    options.log_memory = false;
    options.optimizer.rule = SgdOptions{};
    options.optimizer.lr = 0.1;
    options.sharding.groups.min_group_numel = 0;
    Engine engine(world, model, options);
    engine.backward(model->forward(reference.input()).loss);
    engine.step();
    update_momentum(engine, *model, 0.5);
    save_pretrained(engine, *model, to);
  };
  World alone(0, 1, 0, nullptr, {});
  train(alone, folder.path() / "one");
  run_ranks(2, [&](World& world) { train(world, folder.path() / "two"); });
  const auto one = runtime::SafetensorsFile::open(
      folder.path() / "one" / "model.safetensors");
  const auto two = runtime::SafetensorsFile::open(
      folder.path() / "two" / "model.safetensors");
  const auto old = runtime::SafetensorsFile::open(
      ModelFixture("moco").folder() / "model.safetensors");
  for (const runtime::SafetensorsEntry& entry : one.entries()) {
    SCOPED_TRACE(entry.name);
    expect_near(
        fixture_tensor(two, entry.name), fixture_tensor(one, entry.name));
  }
  const std::string name = "encoder.layer.0.attention.attention.query.weight";
  const torch::Tensor first = fixture_tensor(one, "vit." + name);
  EXPECT_FALSE(first.equal(fixture_tensor(old, "vit." + name)));
  expect_near(
      fixture_tensor(one, "momentum." + name),
      (fixture_tensor(old, "momentum." + name) + first) / 2);
}

// For fine-tuning: the first encoder, with another head.
TEST(Moco, IsReadAsAViT) {
  const ModelFixture reference("moco");
  const auto vit = from_pretrained(
      reference.folder(),
      {.architecture = "ViTForImageClassification",
       .config = {{"model_type", "vit"}}});
  ModelInput input;
  input.pixel_values = torch::cat(
      {reference.input().pixel_values,
       reference.input().others.at("second_pixel_values")});
  input.hidden_states = true;
  expect_near(
      vit->forward(input).hidden_states.back(),
      reference.tensors("out.").at("hidden_states.2"));
}

TEST(Moco, NamesWhatIsWrong) {
  const ModelFixture reference("moco");
  const auto model = load(reference, false);
  ModelInput input = reference.input();
  input.others.clear();
  expect_error([&] { model->forward(input); }, {"second_pixel_values", "both"});
  nlohmann::json config = read_json(reference.folder() / "config.json");
  config["temperature"] = 0;
  expect_error([&] { from_config(config); }, {"temperature"});
}

} // namespace tessera::zoo::moco_test
