// SPDX-License-Identifier: Apache-2.0
// Models whose experts are divided over ranks, against one rank that has all of
// them and all tokens.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "zoo/divided_models.h"
#include "zoo/expert_inputs.h"
#include "zoo/model_layouts.h"

#include <string>
#include <vector>

namespace tessera::zoo::expert_models_test {
namespace {

using tests::run_ranks;

bool is_of_expert(const std::string& name) {
  return name.find(".experts.") != std::string::npos;
}

/// Rows whose losses count alike, for the model's head.
ModelInput input_for(const Model& model) {
  ModelInput input = labelled_input(kRows, kLength);
  const auto head = model.config().at("architectures").at(0).get<std::string>();
  if (head.ends_with("ForTokenClassification")) {
    input.labels = input.input_ids.remainder(2);
  } else if (head.ends_with("ForSequenceClassification")) {
    input.labels = torch::arange(kRows).remainder(2);
  } else if (head.ends_with("ForQuestionAnswering")) {
    input.labels = torch::Tensor();
    for (const char* place : {"start_positions", "end_positions"}) {
      input.others[place] = torch::randint(kLength, {kRows});
    }
  }
  return input;
}

void check(
    World& world,
    const ParallelSizes& sizes,
    const std::string& name,
    bool sequence = false) {
  SCOPED_TRACE(name);
  ParallelGroups groups(
      world,
      ParallelMesh(sizes, world.size(), world.size()),
      torch::Device(torch::kCPU));
  Communicator& gradients = groups[ParallelGroup::kGradients];
  Communicator& same = groups[ParallelGroup::kSameExperts];
  Communicator* tensor =
      sizes.tensor > 1 ? &groups[ParallelGroup::kTensor] : nullptr;
  LayerContext layers = tensor != nullptr
                            ? LayerContext(TensorParallel{tensor, sequence})
                            : LayerContext();
  layers = layers.over_experts({&groups[ParallelGroup::kExpert], &gradients});
  if (sizes.context > 1) {
    layers = layers.over_context({&groups[ParallelGroup::kContext]});
  }

  nlohmann::json changes = kBalanced;
  changes["num_experts"] = 4; // which the ranks divide
  const ChangedModel changed(name, changes);
  const auto plain = from_pretrained(changed.folder());
  const ModelInput input = input_for(*plain);
  const ModelOutput expected = plain->forward(input);
  expected.loss.backward();

  const auto model = from_pretrained(changed.folder(), {.context = layers});
  // Each rank has some of the batch, all with as many labels.
  const int batches = groups.mesh().size(ParallelGroup::kBatches);
  const int own = groups.mesh().index(ParallelGroup::kBatches, world.rank());
  const int64_t rows = kRows / batches;
  const ModelOutput output = model->forward(part_of(input, own, batches));
  const NamedTensors found = output.named();
  EXPECT_EQ(found.size(), expected.named().size());
  for (const auto& [result, tensor] : expected.named()) {
    SCOPED_TRACE(result);
    if (result == "aux_loss") { // of all ranks' tokens
      expect_near(found.at(result).detach(), tensor.detach());
    } else if (tensor.dim() > 0) {
      expect_near(
          found.at(result).detach(),
          tensor.detach().narrow(0, own * rows, rows));
    }
  }
  const at::Tensor loss = output.loss.detach().clone();
  gradients.all_reduce_sum(loss, "a test's average").wait();
  expect_near(loss / gradients.size(), expected.loss.detach());
  output.loss.backward();
  size_t experts = 0;
  for (const auto& item : model->named_parameters()) {
    experts += is_of_expert(item.key()) ? 1 : 0;
  }
  size_t all = 0;
  for (const auto& item : plain->named_parameters()) {
    all += is_of_expert(item.key()) ? 1 : 0;
  }
  EXPECT_EQ(experts * static_cast<size_t>(sizes.expert), all);
  expect_plain_gradients(
      *model,
      *plain,
      [&](const std::string& parameter) -> Communicator& {
        return is_of_expert(parameter) ? same : gradients;
      },
      tensor);
  if (sizes.expert > 1) {
    expect_error(
        [&] { save_pretrained(*model, changed.folder() / "part"); },
        {"some of the experts"});
  }
}

/// With every head that has a loss.
std::vector<std::string> models_with_experts() {
  std::vector<std::string> names = model_names();
  std::erase_if(names, [](const std::string& name) {
    return name.find("_moe") == std::string::npos || name.ends_with("_base");
  });
  return names;
}

} // namespace

TEST(ExpertModels, EqualOneRankOverTwo) {
  run_ranks(2, [](World& world) {
    for (const std::string& name : models_with_experts()) {
      check(world, {.shard = 2, .expert = 2}, name);
      check(world, {.shard = 2, .expert = 1}, name);
    }
  });
}

TEST(ExpertModels, EqualOneRankOverTwoTimesTwo) {
  run_ranks(4, [](World& world) {
    for (const std::string& name : models_with_experts()) {
      check(world, {.data = 2, .shard = 2, .expert = 2}, name);
      check(world, {.shard = 4, .expert = 4}, name);
      for (const bool sequence : {false, true}) {
        check(world, {.shard = 2, .tensor = 2, .expert = 2}, name, sequence);
      }
      check(world, {.shard = 2, .context = 2, .expert = 2}, name);
      check(world, {.shard = 1, .tensor = 2, .context = 2, .expert = 2}, name);
    }
  });
}

TEST(ExpertModels, SayWhatIsNotPossible) {
  run_ranks(2, [](World& world) {
    const auto group = world.new_communicator("expert");
    const LayerContext layers =
        LayerContext().over_experts({group.get(), group.get()});
    const ChangedModel three("qwen3_moe", {{"num_experts", 3}});
    expect_error(
        [&] { from_pretrained(three.folder(), {.context = layers}); },
        {"3 experts", "1, 3"});
    expect_error(
        [&] {
          LayerContext().over_experts({group.get(), nullptr});
        },
        {"gradient group"});
  });
}

TEST(ExpertModels, DropWhatIsBeyondTheCapacity) {
  const ChangedModel dropless("qwen3_moe", nlohmann::json::object());
  const ModelInput input = labelled_input(kRows, kLength);
  const auto logits = [&](double factor) {
    const ChangedModel model("qwen3_moe", {{"expert_capacity_factor", factor}});
    const auto trained = from_pretrained(model.folder());
    trained->train();
    return trained->forward(input).logits;
  };
  const at::Tensor all =
      from_pretrained(dropless.folder())->forward(input).logits;
  expect_near(logits(100).detach(), all.detach());
  const at::Tensor some = logits(0.5);
  EXPECT_FALSE(some.allclose(all));
  EXPECT_TRUE(some.isfinite().all().item<bool>());
  EXPECT_TRUE(logits(0.5).equal(some));
}

// A text is scored and continued as it is alone, whatever is in its batch.
TEST(ExpertModels, DropNothingInEvaluation) {
  const ChangedModel changed("qwen3_moe", {{"expert_capacity_factor", 0.5}});
  const auto model = from_pretrained(changed.folder());
  model->eval();
  const torch::NoGradGuard no_grad;
  const ModelInput batch = labelled_input(kRows, kLength);
  const at::Tensor together = model->forward(batch).logits;
  for (int64_t row = 0; row < kRows; ++row) {
    const ModelInput alone = batch.with_tensors(
        [row](const at::Tensor& tensor) { return tensor.narrow(0, row, 1); });
    expect_near(model->forward(alone).logits, together.narrow(0, row, 1));
  }
}

// Layers that are recomputed keep nothing for the losses of routers.
TEST(ExpertModels, RefuseToLoseGradientsOfRouters) {
  const ChangedModel changed("qwen3_moe", kBalanced);
  const auto model = from_pretrained(changed.folder());
  model->recompute({.layers = model->stage().count()});
  expect_error(
      [&] { model->forward(labelled_input(kRows, kLength)); },
      {"recomputed", "output_router_logits"});
}

} // namespace tessera::zoo::expert_models_test
