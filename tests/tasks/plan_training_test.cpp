// SPDX-License-Identifier: Apache-2.0
// What a plan of a configuration says of runs whose steps differ, or that run
// another model beside theirs; and whether runs of `tessera train` take that.
#include "tessera/tasks/plan_training.h"

#include "support/forked_ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/trainer/training_hook.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/tasks/example_batches.h"
#include "tessera/tasks/examples_task.h"
#include "tessera/tasks/image_batches.h"
#include "tessera/tasks/image_folder_task.h"
#include "tessera/tasks/planned_batch.h"
#include "tessera/tasks/run_training.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/data/span_objective.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"
#include "tools/example_data.h"
#include "zoo/image_files.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks::plan_training_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Names = std::vector<std::string>;

constexpr int64_t kLayers = 4;

/// The most that tensors take in the steps of a run, without what was there
/// before it.
class PeakHook : public TrainingHook {
 public:
  PeakHook() : before_(runtime::cpu_bytes_live()) {}

  void before_step(const TrainingPoint& /*at*/) override {
    runtime::reset_cpu_bytes_peak();
  }
  void after_step(const TrainingPoint& /*at*/, bool /*is_skipped*/) override {
    peak_ = std::max(peak_, runtime::cpu_bytes_peak() - before_);
  }

  int64_t peak() const {
    return peak_;
  }

 private:
  int64_t before_;
  int64_t peak_ = 0;
};

class PlannedTrainingRun : public ::testing::Test {
 protected:
  PlannedTrainingRun() {
    for (const auto& [name, layers] :
         {std::pair("model", kLayers), std::pair("other", 2 * kLayers)}) {
      write(
          std::string(name) + ".json",
          {{"model_type", "gpt2"},
           {"architectures", {"GPT2LMHeadModel"}},
           {"vocab_size", 1000},
           {"n_embd", 128},
           {"n_head", 4},
           {"n_layer", layers},
           {"n_positions", 128}});
    }
  }

  void write(const std::string& name, const json& content) const {
    runtime::write_file_atomically(folder_ / name, content.dump());
  }

  /// Of next tokens in a file.
  TrainingConfig language_model(const Names& overrides) const {
    write(
        "train.json",
        {{"task", "language_model"},
         {"model",
          {{"config", (folder_ / "model.json").string()}, {"max_length", 128}}},
         {"data", {{"train", (folder_ / "tokens.bin").string()}}},
         {"optimizer", {{"lr", 1e-3}}},
         {"training",
          {{"clip_grad_norm", 0},
           {"batch_size", 4},
           {"max_steps", 3},
           {"epochs", 9}}},
         {"output",
          {{"folder", (folder_ / "run").string()}, {"overwrite", true}}}});
    return read_training_config(folder_ / "train.json", overrides);
  }

  /// The peak is in the layers, and not at the logits.
  void use_few_words() const {
    json model = read_json(folder_ / "model.json");
    model["vocab_size"] = 60;
    write("model.json", model);
  }

  void write_tokens() const {
    std::ofstream tokens(folder_ / "tokens.bin", std::ios::binary);
    for (int i = 0; i < 40 * 128 + 1; ++i) {
      const auto token = static_cast<uint16_t>((i * 7 + i / 50) % 60);
      tokens.write(reinterpret_cast<const char*>(&token), sizeof token);
    }
  }

  /// A folder with weights of `model`, whose tokens are those of `words`.
  fs::path model_with(const text::Tokenizer& words) const {
    json model = read_json(folder_ / "model.json");
    model["vocab_size"] = words.size();
    write("model.json", model);
    const fs::path base = weights_of("model");
    fs::copy(fixture("tokenizers") / "llama2.json", base / "tokenizer.json");
    std::ofstream(base / "tokenizer_config.json")
        << json{{"eos_token", "</s>"}};
    return base;
  }

  /// A folder with weights of the config.json of that name.
  fs::path weights_of(const std::string& name) const {
    torch::manual_seed(3);
    zoo::save_pretrained(
        *zoo::from_config(read_json(folder_ / (name + ".json"))),
        folder_ / name);
    return folder_ / name;
  }

  /// A folder with only config.json, the one of that name.
  fs::path without_weights(const std::string& name) const {
    fs::create_directory(folder_ / name);
    fs::copy_file(
        folder_ / (name + ".json"),
        folder_ / name / "config.json",
        fs::copy_options::overwrite_existing);
    return folder_ / name;
  }

  StepMemoryPlan planned(const Names& overrides) const {
    return plan_training(language_model(overrides), 1).front();
  }

  const TemporaryFolder folder_;
};

/// Runs it, in a job of one rank, and compares its peak with the plan's.
void expect_takes_what_is_planned(const char* name, TrainingConfig config) {
  runtime::install_cpu_memory_counter();
  const StepMemoryPlan plan = plan_training(config, 1).front();
  PeakHook hook;
  config.trainer.hooks = {&hook};
  run_training(std::move(config));
  std::fprintf(
      stderr,
      "%-12s measured %7.2f MB, planned %7.2f MB\n",
      name,
      static_cast<double>(hook.peak()) / 1e6,
      static_cast<double>(plan.peak_bytes) / 1e6);
  EXPECT_NEAR(
      static_cast<double>(plan.peak_bytes) / static_cast<double>(hook.peak()),
      1,
      0.01)
      << name;
}

/// Operations in the modules whose names begin so.
double flops_in(
    const StepMemoryPlan& plan,
    const std::string& prefix,
    bool in_forward_only = false) {
  double flops = 0;
  for (const OperatorWork& work : plan.operators) {
    const bool counts = !in_forward_only || !work.in_backward;
    flops += counts && work.module.starts_with(prefix) ? work.flops : 0;
  }
  return flops;
}

int64_t calls_of(
    const StepMemoryPlan& plan,
    const std::string& name,
    const std::string& prefix) {
  int64_t calls = 0;
  for (const OperatorWork& work : plan.operators) {
    const bool counts = work.name.starts_with(name);
    calls += counts && work.module.starts_with(prefix) ? work.calls : 0;
  }
  return calls;
}

bool has_note(const StepMemoryPlan& plan, const std::string& text) {
  return std::any_of(
      plan.assumptions.begin(), plan.assumptions.end(), [&](const auto& note) {
        return note.find(text) != std::string::npos;
      });
}

} // namespace

TEST_F(PlannedTrainingRun, TakesWhatIsPlannedWithATeacherOrAverages) {
  tests::on_ranks(1, [&] {
    write_tokens();
    expect_takes_what_is_planned("plain", language_model({}));
    expect_takes_what_is_planned(
        "averaged", language_model({"optimizer.ema_decay=0.9"}));
    expect_takes_what_is_planned(
        "distilled",
        language_model(
            {"distill.model.folder=" + weights_of("other").string()}));
  });
}

// Weights that are loaded are in LibTorch's layers, new ones in layers that can
// be divided, with other losses and another attention under dropout.
TEST_F(PlannedTrainingRun, TakesWhatIsPlannedOfAFolder) {
  tests::on_ranks(1, [&] {
    write_tokens();
    const Names folder{
        "model.config=null", "model.folder=" + weights_of("model").string()};
    expect_takes_what_is_planned("folder", language_model(folder));
    use_few_words();
    expect_takes_what_is_planned(
        "bfloat16",
        language_model(
            {folder[0],
             "model.folder=" + weights_of("model").string(),
             "precision.parameters=bfloat16"}));
  });
}

TEST_F(PlannedTrainingRun, TakesWhatIsPlannedWithAReference) {
  tests::on_ranks(1, [&] {
    const auto words =
        text::Tokenizer::from_file(fixture("tokenizers") / "llama2.json");
    const fs::path base = model_with(words);
    // One answer of each pair is cut, the other nearly as long.
    std::string answer;
    while (words.encode("is" + answer).ids().size() < 125) {
      answer += " it";
    }
    std::ofstream rows(folder_ / "rows.jsonl");
    for (int i = 0; i < 8; ++i) {
      rows
          << json{{"prompt", i % 2 == 0 ? "is" : "no"}, {"chosen", answer + answer}, {"rejected", answer}}
          << "\n";
    }
    rows.close();
    const auto config = [&](const Names& overrides,
                            const char* task = "preference") {
      write(
          "preference.json",
          {{"task", task},
           {"model", {{"folder", base.string()}, {"max_length", 128}}},
           {"data", {{"train", (folder_ / "rows.jsonl").string()}}},
           {"optimizer", {{"lr", 1e-3}}},
           {"training",
            {{"clip_grad_norm", 0}, {"batch_size", 2}, {"max_steps", 3}}},
           {"output",
            {{"folder", (folder_ / "run").string()}, {"overwrite", true}}}});
      return read_training_config(folder_ / "preference.json", overrides);
    };
    expect_takes_what_is_planned(
        "reference", config({"preference.reference.folder=" + base.string()}));
    expect_takes_what_is_planned(
        "base",
        config({"model.lora.r=4", "model.lora.target_modules=all-linear"}));
    expect_takes_what_is_planned(
        "free", config({"preference.reference_free=true"}));
    const Names good{
        "preference.loss=kto",
        "model.lora.r=4",
        "model.lora.target_modules=all-linear"};
    expect_takes_what_is_planned("good", config(good));
    Names accumulated = good;
    accumulated.emplace_back("training.accumulate=2");
    expect_takes_what_is_planned("accumulated", config(accumulated));
    EXPECT_EQ(planned_tokens(config(good)), 2 * 128);
    EXPECT_EQ(planned_tokens(config({}, "reward")), 2 * 2 * 128);
    const Names free{"preference.reference_free=true"};
    EXPECT_EQ(planned_tokens(config(free)), 2 * 2 * 128);
    EXPECT_TRUE(has_note(
        plan_training(config(free), 1).front(), "all answers have 128 tokens"));
  });
}

// Masks and positions of documents, also where rows are packed.
TEST_F(PlannedTrainingRun, TakesWhatIsPlannedWithDocumentsApart) {
  use_few_words();
  tests::on_ranks(1, [&] {
    write_tokens();
    expect_takes_what_is_planned("together", language_model({}));
    const Names apart{"data.separate_documents=true", "data.end_token=5"};
    expect_takes_what_is_planned("documents", language_model(apart));
    const auto words =
        text::Tokenizer::from_file(fixture("tokenizers") / "llama2.json");
    const fs::path base = model_with(words);
    std::string answer;
    while (words.encode("is" + answer).ids().size() < 63) { // and an end
      answer += " it";
    }
    std::ofstream rows(folder_ / "rows.jsonl");
    for (int i = 0; i < 24; ++i) {
      rows << json{{"prompt", "is"}, {"completion", answer}} << "\n";
    }
    rows.close();
    write(
        "supervised.json",
        {{"task", "supervised"},
         {"model", {{"folder", base.string()}, {"max_length", 128}}},
         {"data", {{"train", (folder_ / "rows.jsonl").string()}}},
         {"optimizer", {{"lr", 1e-3}}},
         {"training",
          {{"clip_grad_norm", 0}, {"batch_size", 4}, {"max_steps", 3}}},
         {"output",
          {{"folder", (folder_ / "run").string()}, {"overwrite", true}}}});
    // Planned are full sequences of which all is learned; these are not.
    expect_takes_what_is_planned(
        "packed", read_training_config(folder_ / "supervised.json"));
  });
}

// Inputs of objectives: pairs of segments, and second texts that are shorter.
TEST_F(PlannedTrainingRun, TakesWhatIsPlannedWithObjectives) {
  write(
      "model.json",
      {{"model_type", "bert"},
       {"architectures", {"BertForPreTraining"}},
       {"vocab_size", 60},
       {"hidden_size", 128},
       {"intermediate_size", 512},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 4},
       {"max_position_embeddings", 128}});
  tests::on_ranks(1, [&] {
    write_tokens();
    expect_takes_what_is_planned(
        "pairs",
        language_model(
            {R"(data.special_tokens={"mask":1,"start":2,"end":3})"}));
    write(
        "model.json",
        {{"model_type", "t5"},
         {"architectures", {"T5ForConditionalGeneration"}},
         {"vocab_size", 200},
         {"d_model", 128},
         {"d_kv", 32},
         {"d_ff", 512},
         {"num_layers", 2},
         {"num_heads", 4},
         {"decoder_start_token_id", 0},
         {"pad_token_id", 0}});
    const auto inputs = zoo::SpanLengths::of(128, {}).inputs;
    expect_takes_what_is_planned(
        "spans",
        language_model(
            {R"(data.special_tokens={"end":1,"first_sentinel":199})",
             "model.max_length=" + std::to_string(inputs)}));
  });
}

// Images are a good part of what a small model takes: those of the step and
// those that are loaded ahead.
TEST_F(PlannedTrainingRun, CountsBatches) {
  const int64_t image = 3 * 32 * 32;
  const auto images = [&](int64_t prefetch, c10::DeviceType device) {
    write(
        "vit.json",
        {{"model_type", "vit"},
         {"architectures", {"ViTForImageClassification"}},
         {"image_size", 32},
         {"patch_size", 8},
         {"num_channels", 3},
         {"hidden_size", 48},
         {"num_hidden_layers", 2},
         {"num_attention_heads", 4},
         {"intermediate_size", 96}});
    write(
        "images.json",
        {{"task", "examples"},
         {"model",
          {{"config", (folder_ / "vit.json").string()},
           {"classes", {"a", "b"}}}},
         {"data",
          {{"train", (folder_ / "nowhere.safetensors").string()},
           {"loader", {{"prefetch", prefetch}}}}},
         {"training", {{"batch_size", 64}}},
         {"output", {{"folder", (folder_ / "run").string()}}}});
    return plan_training(
               read_training_config(folder_ / "images.json"), 1, 0, device)
        .front()
        .peak_bytes;
  };
  const int64_t batch = 64 * (4 * image + 8); // with labels
  tests::on_ranks(1, [&] { // as the tests that follow; it starts threads
    EXPECT_EQ(images(3, c10::kCPU) - images(1, c10::kCPU), 2 * batch);
    EXPECT_EQ(images(3, c10::kCUDA), images(1, c10::kCUDA));
  });
}

// Beside the batch, making one has images as they are read, and others that
// are mixed with them.
TEST_F(PlannedTrainingRun, CountsWhatMakingImagesTakes) {
  write(
      "vit.json",
      {{"model_type", "vit"},
       {"architectures", {"ViTForImageClassification"}},
       {"image_size", 32},
       {"patch_size", 8},
       {"num_channels", 3},
       {"hidden_size", 48},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 4},
       {"intermediate_size", 96}});
  zoo::write_tinted_images(folder_ / "images", 40, 0);
  constexpr int64_t kRows = 64;
  for (const auto& [name, dtype] :
       {std::pair("bytes", runtime::SafetensorsDtype::kU8),
        std::pair("floats", runtime::SafetensorsDtype::kF32)}) {
    tests::write_examples(
        folder_ / (std::string(name) + ".safetensors"),
        {{"pixel_values",
          {dtype, {kRows, 3, 32, 32}, [](auto, auto) { return 1.0; }}},
         {"labels",
          {runtime::SafetensorsDtype::kI64, {kRows}, [](auto row, auto) {
             return static_cast<double>(row % 2);
           }}}});
  }
  const auto config_of = [&](const char* task, const char* train, json data) {
    data["train"] = (folder_ / train).string();
    write(
        "images.json",
        {{"task", task},
         {"model",
          {{"config", (folder_ / "vit.json").string()},
           {"classes", {"blue", "red"}}}},
         {"data", data},
         {"training", {{"batch_size", kRows}}},
         {"output", {{"folder", (folder_ / "run").string()}}}});
    return read_training_config(folder_ / "images.json");
  };
  json source = read_json(folder_ / "vit.json");
  source["id2label"] = {{"0", "blue"}, {"1", "red"}};
  const auto model = zoo::from_config(source);
  std::vector<size_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  tests::on_ranks(1, [&] {
    runtime::install_cpu_memory_counter();
    const auto check = [&](const TrainingConfig& config,
                           const zoo::DataSet& data) {
      const PlannedBatch planned = planned_batch(config, *model, source);
      const int64_t before = runtime::cpu_bytes_live();
      runtime::reset_cpu_bytes_peak();
      const zoo::ModelInput batch = data.make(rows, 0, /*loss_only=*/true);
      const int64_t most = runtime::cpu_bytes_peak() - before;
      EXPECT_EQ(bytes_of(batch), bytes_of(planned.input));
      EXPECT_NEAR(
          static_cast<double>(most - bytes_of(batch)),
          static_cast<double>(planned.making_bytes),
          0.01 * static_cast<double>(bytes_of(batch)));
      // The plan has it once, for the thread that makes batches.
      TrainingConfig without = config;
      without.loader.threads = 0;
      EXPECT_EQ(
          plan_training(config, 1).front().peak_bytes -
              plan_training(without, 1).front().peak_bytes,
          planned.making_bytes + config.loader.prefetch * bytes_of(batch));
    };
    const auto head = head_of(*model);
    for (const double mixup : {0.0, 0.4}) {
      SCOPED_TRACE(mixup);
      const TrainingConfig config =
          config_of("image_folder", "images", {{"mixup", mixup}});
      const auto& options = config.as<ImageTaskOptions>();
      check(
          config,
          ImageBatches(
              ImageFolder::read(folder_ / "images", true),
              *head,
              options.images,
              options.examples));
    }
    for (const char* train : {"bytes.safetensors", "floats.safetensors"}) {
      for (const bool is_scaled : {false, true}) {
        SCOPED_TRACE(formatted("{}, scaled: {}", train, is_scaled));
        const TrainingConfig config = config_of(
            "examples",
            train,
            is_scaled ? json{{"pixels", {{"mean", {0.5}}}}} : json::object());
        check(
            config,
            ExampleBatches(
                zoo::ExampleFiles(config.data.train_path()),
                *head,
                model->architecture(),
                config.as<ExampleTaskOptions>().examples,
                /*measures_metric=*/false,
                at::kCPU));
      }
    }
  });
}

// No step takes more than planned, and some take that.
TEST_F(PlannedTrainingRun, TakesNoMoreThanPlannedWhateverStepsLeaveOut) {
  use_few_words();
  tests::on_ranks(1, [&] {
    runtime::install_cpu_memory_counter();
    write_tokens();
    const auto run = [&](const char* name, Names overrides) {
      overrides.emplace_back("training.max_steps=9");
      TrainingConfig config = language_model(overrides);
      const StepMemoryPlan plan = plan_training(config, 1).front();
      PeakHook hook;
      config.trainer.hooks = {&hook};
      run_training(std::move(config));
      const double ratio = static_cast<double>(hook.peak()) /
                           static_cast<double>(plan.peak_bytes);
      EXPECT_LT(ratio, 1.002) << name;
      EXPECT_GT(ratio, 0.97) << name;
    };
    // In step 0 all layers are run; later almost all.
    run("layers", {"model.layer_drop.theta=0.999", "model.layer_drop.gamma=1"});
    run("tokens",
        {"model.token_drop.min_tokens=64",
         "model.token_drop.steps=8",
         "model.token_drop.multiple=1"});
    run("curriculum",
        {"training.curriculum.min_length=32",
         "training.curriculum.steps=6",
         "training.curriculum.multiple=8"});
  });
}

// The language model that goes on with the prompts, as if all of a row were to
// be learned, and no classifier.
TEST_F(PlannedTrainingRun, OfATemplateIsThatOfALanguageModel) {
  const json files{
      {"train", "nowhere.jsonl"}, {"template", "{text} is [label]"}};
  const auto plan_of = [&](const char* task, json data) {
    write(
        "texts.json",
        {{"task", task},
         {"model",
          {{"folder", without_weights("model").string()}, {"max_length", 128}}},
         {"data", std::move(data)},
         {"training", {{"batch_size", 4}}},
         {"output", {{"folder", (folder_ / "run").string()}}}});
    return plan_training(read_training_config(folder_ / "texts.json"), 1)
        .front();
  };
  const auto prompts = plan_of("text_classification", files);
  const auto rows = plan_of("supervised", {{"train", "nowhere.jsonl"}});
  EXPECT_NEAR(
      static_cast<double>(prompts.peak_bytes) /
          static_cast<double>(rows.peak_bytes),
      1,
      0.02);
  EXPECT_NEAR(prompts.flops() / rows.flops(), 1, 0.02);
}

TEST_F(PlannedTrainingRun, OfAnswersIsThatOfTheirPlaces) {
  write(
      "model.json",
      read_json(fixture("models") / "bert_questions" / "config.json"));
  write(
      "questions.json",
      {{"task", "question_answering"},
       {"model",
        {{"folder", without_weights("model").string()}, {"max_length", 16}}},
       {"data", {{"train", "nowhere.json"}}},
       {"output", {{"folder", (folder_ / "run").string()}}}});
  const auto plan =
      plan_training(read_training_config(folder_ / "questions.json"), 1);
  EXPECT_GT(plan.front().flops(), 0);
}

// Of the teacher, config.json alone is there.
TEST_F(PlannedTrainingRun, HasTheMemoryAndTheForwardOfATeacher) {
  const StepMemoryPlan alone = planned({});
  const StepMemoryPlan plan =
      planned({"distill.model.folder=" + without_weights("other").string()});
  const auto parameters = [](const StepMemoryPlan& of) {
    return of.planned[static_cast<size_t>(MemoryTier::kDevice)]
                     [static_cast<size_t>(MemoryPurpose::kParameters)];
  };
  const auto full = [&](const char* name) {
    int64_t numel = 0;
    for (const at::Tensor& each :
         zoo::from_config(read_json(folder_ / (std::string(name) + ".json")))
             ->parameters()) {
      numel += each.numel();
    }
    return 4 * numel;
  };
  EXPECT_NEAR(
      static_cast<double>(parameters(plan) - parameters(alone)),
      static_cast<double>(full("other")),
      1e4); // alignment
  EXPECT_GT(plan.peak_bytes, alone.peak_bytes + full("other"));
  // It has twice the layers, and runs forward only.
  EXPECT_EQ(
      flops_in(plan, "beside.layers."), 2 * flops_in(plan, "layers.", true));
  EXPECT_EQ(flops_in(plan, "layers."), flops_in(alone, "layers."));
}

// Lengths and masked tokens are those of data.train; where it is not there,
// texts are as long as the model has positions.
TEST_F(PlannedTrainingRun, TakesTheLengthsOfExamples) {
  const auto texts = [](int64_t length) {
    return tests::ExampleTensor{
        runtime::SafetensorsDtype::kU16,
        {16, length},
        [](int64_t row, int64_t place) {
          return static_cast<double>(3 + (row * 31 + place * 7) % 900);
        }};
  };
  const auto config = [&](const json& model, const json& data) {
    write("examples.json", model);
    json all = data;
    all["train"] = (folder_ / "examples.safetensors").string();
    write(
        "train.json",
        {{"task", "examples"},
         {"model", {{"config", (folder_ / "examples.json").string()}}},
         {"data", all},
         {"optimizer", {{"lr", 1e-3}}},
         {"training", {{"batch_size", 4}, {"max_steps", 3}}},
         {"output",
          {{"folder", (folder_ / "run").string()}, {"overwrite", true}}}});
    return read_training_config(folder_ / "train.json", Names{});
  };
  const json bert{
      {"model_type", "bert"},
      {"architectures", {"BertForMaskedLM"}},
      {"vocab_size", 1000},
      {"hidden_size", 128},
      {"intermediate_size", 512},
      {"num_hidden_layers", 4},
      {"num_attention_heads", 4},
      {"max_position_embeddings", 256}};
  const json masks{{"mask", {{"mask_token", 2}, {"never_masked", {0, 1}}}}};
  const json t5{
      {"model_type", "t5"},
      {"architectures", {"T5ForConditionalGeneration"}},
      {"vocab_size", 1000},
      {"d_model", 128},
      {"d_kv", 32},
      {"d_ff", 512},
      {"num_layers", 2},
      {"num_decoder_layers", 2},
      {"num_heads", 4},
      {"decoder_start_token_id", 0},
      {"pad_token_id", 0}};
  tests::on_ranks(1, [&] {
    const StepMemoryPlan longest =
        plan_training(config(bert, masks), 1).front();
    EXPECT_TRUE(has_note(longest, "texts of 256 tokens"));
    try {
      plan_training(config(t5, json::object()), 1);
      FAIL() << "no length is known";
    } catch (const Error& error) {
      EXPECT_NE(
          std::string(error.what()).find("examples.safetensors"),
          std::string::npos)
          << error.what();
    }
    const fs::path file = folder_ / "examples.safetensors";
    tests::write_examples(file, {{"input_ids", texts(96)}});
    const StepMemoryPlan plan = plan_training(config(bert, masks), 1).front();
    EXPECT_FALSE(has_note(plan, "texts of"));
    EXPECT_LT(plan.peak_bytes, longest.peak_bytes);
    expect_takes_what_is_planned("masked", config(bert, masks));
    tests::write_examples(
        file, {{"input_ids", texts(96)}, {"labels", texts(40)}});
    expect_takes_what_is_planned("translated", config(t5, json::object()));
  });
}

// A budget is for both models.
TEST_F(PlannedTrainingRun, KeepsToABudgetWithATeacher) {
  const std::string teacher =
      "distill.model.folder=" + without_weights("other").string();
  int made = 0;
  for (int64_t mib = 6; mib <= 16; ++mib) {
    const TrainingConfig config = language_model(
        {teacher,
         "memory.device_bytes=" + std::to_string(mib) + "MiB",
         "memory.activation_bytes=0"});
    int64_t taken = 0;
    try {
      taken = total_bytes(plan_training(config, 4).front().planned.front());
    } catch (const Error&) { // too little
      continue;
    }
    ++made;
    EXPECT_LE(taken, mib << 20) << mib;
  }
  EXPECT_GT(made, 3);
}

TEST_F(PlannedTrainingRun, UpdatesAverages) {
  const StepMemoryPlan plan = planned({"optimizer.ema_decay=0.9"});
  EXPECT_EQ(calls_of(planned({}), "aten::lerp", ""), 0);
  EXPECT_GT(calls_of(plan, "aten::lerp", ""), 0);
}

// Steps run layer l with probability 1 - l / L (1 - theta) in the long run.
TEST_F(PlannedTrainingRun, ExpectsTheLayersThatLateStepsRun) {
  const Names drops{
      "model.layer_drop.theta=0.2", "model.layer_drop.gamma=0.01"};
  const StepMemoryPlan alone = planned({});
  const StepMemoryPlan plan = planned(drops);
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    EXPECT_NEAR(
        flops_in(plan, name) / flops_in(alone, name),
        1 - layer / double{kLayers} * 0.8,
        1e-9)
        << name;
  }
  EXPECT_EQ(flops_in(plan, "embeddings."), flops_in(alone, "embeddings."));
  // What a layer adds is multiplied, forward and backward.
  EXPECT_GT(
      calls_of(plan, "aten::mul", "layers.3."),
      calls_of(alone, "aten::mul", "layers.3."));
  EXPECT_TRUE(has_note(plan, "which run 70 % of them"));
  EXPECT_FALSE(has_note(alone, "layer_drop"));
}

TEST_F(PlannedTrainingRun, IsOfWholeSequencesAndAllTokens) {
  use_few_words();
  const StepMemoryPlan alone = planned({});
  const StepMemoryPlan grown = planned(
      {"training.curriculum.min_length=32", "training.curriculum.steps=50"});
  EXPECT_EQ(grown.peak_bytes, alone.peak_bytes);
  EXPECT_EQ(grown.flops(), alone.flops());
  EXPECT_TRUE(has_note(grown, "sequences of 128 tokens, as from step 50 on"));
  const StepMemoryPlan tokens = planned(
      {"model.token_drop.min_tokens=32",
       "model.token_drop.steps=70",
       "model.token_drop.multiple=1"});
  EXPECT_EQ(tokens.flops(), alone.flops());
  // Of steps that leave out few tokens, whose places take memory, too.
  EXPECT_GT(tokens.peak_bytes, alone.peak_bytes);
  EXPECT_TRUE(has_note(tokens, "as from step 70 on"));
}

} // namespace tessera::tasks::plan_training_test
