// SPDX-License-Identifier: Apache-2.0
// A teacher: loss and gradients of a wrapped student against plain LibTorch,
// the teacher's memory, and runs.
#include "tessera/tasks/distillation.h"

#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "support/ranks.h"
#include "tessera/tasks/run_training.h"
#include "tessera/zoo/layers/losses.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace tessera::tasks::distillation_test {

namespace {

namespace fs = std::filesystem;
namespace F = torch::nn::functional;
using nlohmann::json;

/// A fixture's model with one layer and other weights.
std::shared_ptr<zoo::Model> make_student(
    const std::string& name,
    const char* key) {
  json config = read_json(fixture("models") / name / "config.json");
  config[key] = 1;
  torch::manual_seed(11);
  auto model = zoo::from_config(config);
  model->eval(); // no dropout
  return model;
}

/// [4, 7] tokens, the second half padded, with labels of `head`.
zoo::ModelInput batch_for(const zoo::Head& head, int rank) {
  torch::manual_seed(20 + rank);
  zoo::ModelInput batch;
  batch.input_ids = torch::randint(4, 60, {4, 7});
  batch.attention_mask = torch::ones({4, 7}, torch::kLong);
  batch.attention_mask.slice(0, 2).slice(1, 5).zero_();
  batch.labels =
      head.labels() == zoo::HeadLabels::kClass
          ? torch::randint(0, head.classes(), {4})
          : batch.input_ids.masked_fill(batch.attention_mask.eq(0), -100);
  return batch;
}

/// The loss in LibTorch's own functions.
at::Tensor plain_loss(
    zoo::Model& student,
    zoo::Model& teacher,
    const zoo::Head& head,
    zoo::ModelInput batch,
    const DistillationOptions& options) {
  batch.hidden_states = true;
  const zoo::ModelOutput own = student.forward(batch);
  const torch::NoGradGuard no_grad;
  const zoo::ModelOutput soft = teacher.forward(batch);
  const at::AutoGradMode grad(true);
  at::Tensor logits = own.logits;
  at::Tensor targets = soft.logits;
  at::Tensor labels = batch.labels;
  if (labels.dim() == 2) {
    const bool next = head.labels() == zoo::HeadLabels::kNextTokens;
    const int64_t end = logits.size(1) - (next ? 1 : 0);
    logits = logits.slice(1, 0, end).flatten(0, 1);
    targets = targets.slice(1, 0, end).flatten(0, 1);
    labels = labels.slice(1, next ? 1 : 0).flatten();
    const at::Tensor counts = labels.ne(-100).nonzero().squeeze(1);
    logits = logits.index_select(0, counts);
    targets = targets.index_select(0, counts);
    labels = labels.index_select(0, counts);
  }
  const double t = options.temperature;
  const at::Tensor kl = F::kl_div(
      F::log_softmax(logits / t, -1),
      F::softmax(targets / t, -1),
      F::KLDivFuncOptions().reduction(torch::kBatchMean));
  at::Tensor loss = options.alpha * t * t * kl +
                    (1 - options.alpha) * F::cross_entropy(logits, labels);
  const at::Tensor seen = batch.attention_mask.flatten().nonzero().squeeze(1);
  at::Tensor hidden = torch::zeros({});
  for (size_t i = 0; i < options.student_layers.size(); ++i) {
    const auto of = [&](const zoo::ModelOutput& output, int64_t layer) {
      return output.hidden_states[static_cast<size_t>(layer)]
          .flatten(0, 1)
          .index_select(0, seen);
    };
    hidden = hidden + F::mse_loss(
                          of(own, options.student_layers[i]),
                          of(soft, options.teacher_layers[i]));
  }
  return options.student_layers.empty()
             ? loss
             : loss + options.hidden_weight * hidden /
                          static_cast<double>(options.student_layers.size());
}

} // namespace

class Distillation
    : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Distillation, EqualsPlainLibTorch) {
  const std::string name = std::get<0>(GetParam());
  const char* key = std::get<1>(GetParam());
  tests::run_ranks(2, [&](World& world) {
    DistillationOptions options;
    options.model.folder = fixture("models") / name;
    options.alpha = 0.7;
    options.temperature = 3;
    if (name != "t5") { // whose padding is that of the other half
      options.hidden_weight = 0.4;
      options.student_layers = {0, 1};
      options.teacher_layers = {0, 2};
    }
    check(options);
    TrainingConfig config(kLanguageModel);
    config.engine.log_memory = false;
    config.engine.memory.device_bytes = int64_t{1} << 30;
    ParallelRun parallel(world, {}, 1);
    auto teacher = std::make_unique<FrozenModel>(
        options.model, "the teacher", world, parallel, config);
    const auto planned = teacher->engine().planned_memory();
    const auto at = [&](MemoryPurpose purpose) {
      return planned[static_cast<size_t>(purpose)];
    };
    EXPECT_GT(at(MemoryPurpose::kParameters), 0);
    EXPECT_EQ(at(MemoryPurpose::kGradients), 0);
    EXPECT_EQ(at(MemoryPurpose::kOptimizerState), 0);
    EXPECT_EQ(
        *config.engine.memory.device_bytes,
        (int64_t{1} << 30) - total_bytes(planned));

    const auto model = make_student(name, key);
    const auto head = model->head();
    DistillationLoss distillation(options, *model, *head, std::move(teacher));
    EngineOptions engine_options;
    engine_options.log_memory = false;
    engine_options.sharding.groups.min_group_numel = 0;
    Engine engine(world, model, engine_options);
    const auto plain = make_student(name, key);
    const auto plain_teacher = zoo::from_pretrained(options.model.folder);
    for (int step = 0; step < 2; ++step) { // planned in the second
      plain->zero_grad();
      at::Tensor own;
      for (int rank = 0; rank < 2; ++rank) {
        const at::Tensor loss = plain_loss(
            *plain, *plain_teacher, *head, batch_for(*head, rank), options);
        (loss / 2).backward();
        own = rank == world.rank() ? loss.detach() : own;
      }
      const at::Tensor loss =
          distillation.loss(*model, batch_for(*head, world.rank()));
      EXPECT_TRUE(torch::allclose(loss, own, 1e-5, 1e-6))
          << loss.item<double>() << " " << own.item<double>();
      engine.backward(loss);
      const auto parameters = model->named_parameters();
      double largest = 0;
      for (const auto& item : plain->named_parameters()) {
        largest =
            std::max(largest, item.value().grad().abs().max().item<double>());
      }
      for (const auto& item : plain->named_parameters()) {
        const at::Tensor wanted = item.value().grad();
        const at::Tensor found = engine.grad(parameters[item.key()]);
        // Float32: sums in another order. Some are zero but for rounding.
        EXPECT_TRUE(torch::allclose(found, wanted, 1e-4, 1e-6 * largest))
            << item.key();
      }
      engine.multiply_gradients(0); // the weights stay
      engine.set_learning_rate(0);
      engine.step();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    Distillation,
    ::testing::Values(
        std::tuple("gpt2", "n_layer"),
        std::tuple("bert_classifier", "num_hidden_layers"),
        std::tuple("t5", "num_layers")));

TEST(DistillationRun, LearnsWithoutItsLabels) {
  const TemporaryFolder folder;
  const auto config = [&](const std::vector<std::string>& more) {
    std::vector<std::string> overrides{
        "output.folder=" + (folder / "run").string(), "output.overwrite=true"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return read_training_config(folder / "train.json", overrides);
  };
  tests::on_ranks(1, [&] {
    json student = read_json(fixture("models") / "gpt2" / "config.json");
    student["n_layer"] = 1;
    std::ofstream(folder / "student.json") << student;
    torch::manual_seed(1);
    std::ofstream tokens(folder / "tokens.bin", std::ios::binary);
    for (int i = 0; i < 1200; ++i) {
      const auto token = static_cast<uint16_t>((i * 7 + i / 50) % 60);
      tokens.write(reinterpret_cast<const char*>(&token), sizeof token);
    }
    tokens.close();
    const json values = {
        {"task", "language_model"},
        {"model",
         {{"config", (folder / "student.json").string()}, {"max_length", 16}}},
        {"distill",
         {{"model", {{"folder", (fixture("models") / "gpt2").string()}}},
          {"alpha", 1.0},
          {"temperature", 1.0}}},
        {"data", {{"train", (folder / "tokens.bin").string()}}},
        {"optimizer", {{"lr", 0.02}}},
        {"training",
         {{"clip_grad_norm", 0},
          {"batch_size", 4},
          {"max_steps", 30},
          {"epochs", 9}}},
        {"output", {{"folder", (folder / "run").string()}}}};
    runtime::write_file_atomically(folder / "train.json", values.dump());
    const auto one = run_training(config({"training.max_steps=1"}));
    const auto all = run_training(config({}));
    // The divergence from the teacher shrinks.
    EXPECT_LT(all.summary.last_loss, 0.5 * one.summary.last_loss);
    expect_error(
        [&] { config({"distill.hidden_weight=1"}); }, {"student_layers"});
    expect_error(
        [&] {
          run_training(config(
              {"distill.hidden_weight=1",
               "distill.student_layers=[1]",
               "distill.teacher_layers=[3]"}));
        },
        {"teacher_layers", "2 layers"});
    // Whose tokenizer gives other tokens the ids that it gets.
    const auto with_tokens = [&](const char* name, const char* tokenizer) {
      std::filesystem::copy(fixture("models") / "gpt2", folder / name);
      std::filesystem::copy(
          fixture("tokenizers") / tokenizer, folder / name / "tokenizer.json");
      return (folder / name).string();
    };
    const std::vector<std::string> same{
        "model.config=null",
        "training.max_steps=1",
        "model.folder=" + with_tokens("student", "gpt2.json"),
        "distill.model.folder=" + with_tokens("teacher", "gpt2.json")};
    run_training(config(same));
    auto other = same;
    other.back() =
        "distill.model.folder=" + with_tokens("other", "llama2.json");
    expect_error(
        [&] { run_training(config(other)); },
        {"the teacher", "the token 0 is ", "same tokenizer"});
  });
}

} // namespace tessera::tasks::distillation_test
