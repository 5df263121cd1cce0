// SPDX-License-Identifier: Apache-2.0
#include "bench/training_operators.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/runtime/kernels/bfloat16_product.h"
#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/runtime/profile/operator_observer.h"
#include "tessera/tasks/plan_training.h"
#include "tessera/tasks/training_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <stdlib.h>

namespace tessera::tools {

namespace training_operators {

namespace {

using nlohmann::json;
using planner::MeasuredOperator;
using planner::MeasuredSteps;

constexpr int kWarmUp = 1; ///< steps: libraries choose kernels, memory is made
constexpr int kMeasured = 3; ///< steps
constexpr int64_t kLength = 256; ///< tokens
constexpr int64_t kRows = 4;

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "tessera-bench-XXXXXX")
            .string();
    TESSERA_CHECK(
        ::mkdtemp(name.data()) != nullptr,
        "cannot make the temporary folder {}: {}; set TMPDIR",
        name,
        std::strerror(errno));
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    runtime::remove_tree(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  std::filesystem::path path_;
};

/// A config.json of each family.
std::vector<json> models(int64_t features) {
  const int64_t heads = features / 64;
  const int64_t words = 16 * features;
  const auto llama = [&](const char* type, const char* architecture) {
    return json{
        {"model_type", type},
        {"architectures", {architecture}},
        {"vocab_size", words},
        {"hidden_size", features},
        {"intermediate_size", features * 11 / 4},
        {"num_hidden_layers", 2},
        {"num_attention_heads", heads},
        {"head_dim", 64},
        {"num_key_value_heads", std::max<int64_t>(heads / 2, 1)},
        {"max_position_embeddings", kLength}};
  };
  json moe = llama("qwen3_moe", "Qwen3MoeForCausalLM");
  moe.update(
      {{"moe_intermediate_size", features / 2},
       {"num_experts", 8},
       {"num_experts_per_tok", 2},
       {"norm_topk_prob", true}});
  return {
      {{"model_type", "gpt2"},
       {"architectures", {"GPT2LMHeadModel"}},
       {"vocab_size", words},
       {"n_positions", kLength},
       {"n_embd", features},
       {"n_layer", 2},
       {"n_head", heads},
       {"resid_pdrop", 0},
       {"embd_pdrop", 0},
       {"attn_pdrop", 0}},
      llama("llama", "LlamaForCausalLM"),
      {{"model_type", "bert"},
       {"architectures", {"BertForMaskedLM"}},
       {"vocab_size", words},
       {"hidden_size", features},
       {"intermediate_size", 4 * features},
       {"num_hidden_layers", 2},
       {"num_attention_heads", heads},
       {"max_position_embeddings", kLength}},
      {{"model_type", "t5"},
       {"architectures", {"T5ForConditionalGeneration"}},
       {"vocab_size", words},
       {"d_model", features},
       {"d_kv", 64},
       {"d_ff", 4 * features},
       {"num_layers", 2},
       {"num_decoder_layers", 2},
       {"num_heads", heads},
       {"n_positions", kLength},
       {"dropout_rate", 0},
       {"decoder_start_token_id", 0},
       {"pad_token_id", 0}},
      {{"model_type", "vit"},
       {"architectures", {"ViTForImageClassification"}},
       {"hidden_size", features},
       {"intermediate_size", 4 * features},
       {"num_hidden_layers", 2},
       {"num_attention_heads", heads},
       {"image_size", 64},
       {"patch_size", 4}},
      moe};
}

/// How a model computes.
struct Arithmetic {
  const char* dtype; ///< of its parameters
  CpuMatmul matmul = CpuMatmul::kAuto;

  bool is_rounded() const {
    return matmul == CpuMatmul::kBfloat16;
  }
};

std::vector<Arithmetic> arithmetics() {
  std::vector<Arithmetic> all{{"float32"}, {"bfloat16"}};
  if (runtime::has_bfloat16_products()) {
    all.push_back({"float32", CpuMatmul::kBfloat16});
  }
  return all;
}

/// What `tessera train` reads; there is no data.
json recipe(const json& model, const Arithmetic& arithmetic) {
  const std::string type = model.at("model_type");
  const bool is_text = type == "gpt2" || type == "llama" || type == "qwen3_moe";
  json config{
      {"task", is_text ? "language_model" : "examples"},
      {"model", {{"config", "model.json"}}},
      {"data", {{"train", is_text ? "tokens.bin" : "examples.safetensors"}}},
      {"device", "cpu"},
      {"optimizer", {{"lr", 1e-4}}},
      {"cpu_matmul", name_of(arithmetic.matmul)},
      {"precision", {{"parameters", arithmetic.dtype}}},
      {"training", {{"batch_size", kRows}}},
      {"output", {{"folder", "run"}}}};
  if (type == "vit") {
    config["model"]["classes"] = {"a", "b", "c"};
  } else if (is_text) {
    config["model"]["max_length"] = kLength;
  }
  if (type == "bert") {
    config["data"]["mask"] = {{"mask_token", 2}, {"never_masked", {0, 1}}};
  }
  return config;
}

struct TimedCall {
  std::string name;
  double seconds = 0;
};

/// Times the outermost calls of operators with given names: those that a dry
/// run counts, with all that they call.
class OperatorTimer : public runtime::OperatorObserver {
 public:
  explicit OperatorTimer(std::set<std::string> names)
      : names_(std::move(names)) {}

  void on_begin(const at::RecordFunction& call) override {
    if (call.scope() != at::RecordScope::FUNCTION) {
      return;
    }
    if (depth_ > 0) {
      ++depth_;
    } else if (names_.contains(call.name())) {
      depth_ = 1;
      calls_.push_back({.name = call.name()});
      begin_ = Clock::now();
    }
  }

  void on_end(const at::RecordFunction& call) override {
    if (call.scope() == at::RecordScope::FUNCTION && depth_ > 0 &&
        --depth_ == 0) {
      const std::chrono::duration<double> passed = Clock::now() - begin_;
      calls_.back().seconds = passed.count();
    }
  }

  std::vector<TimedCall> take() {
    return std::exchange(calls_, {});
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::set<std::string> names_;
  int depth_ = 0; ///< operators within the one that is timed
  Clock::time_point begin_;
  std::vector<TimedCall> calls_;
};

double median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Sums over all models.
struct Totals {
  double kernel_bytes = 0;
  double kernel_seconds = 0;
  double other_bytes = 0; ///< of operators without products
  double other_seconds = 0;
};

/// One model's steps.
class ModelSteps {
 public:
  /// @param is_rounded the factors of products, which are all that differs from
  ///   steps where they are not.
  explicit ModelSteps(bool is_rounded) : is_rounded_(is_rounded) {}

  void report(const SimulatedRun& run) {
    if (run.steps.empty()) {
      plan_ = run.plan;
    } else if (run.steps.size() == kWarmUp) {
      std::set<std::string> names;
      for (const OperatorWork& work : plan_.operators) {
        names.insert(work.name);
      }
      timer_.emplace(std::move(names));
    } else {
      calls_.push_back(timer_->take());
      seconds_.push_back(run.steps.back().seconds);
      if (calls_.size() == kMeasured) {
        timer_.reset();
      }
    }
  }

  /// Joins the calls of a step with those of the plan: the first of a name with
  /// its first, and so on. Of a name that was called more or less often, each
  /// planned call gets the mean.
  void add_to(MeasuredSteps& steps, Totals& totals) const {
    const std::map<std::string, std::vector<double>> measured = medians();
    double operators = 0;
    for (const auto& [name, seconds] : measured) {
      operators += std::accumulate(seconds.begin(), seconds.end(), 0.0);
    }
    std::map<std::string, std::vector<size_t>> planned; // rows
    for (const WorkCall& call : plan_.calls) {
      if (!call.is_kernel) {
        planned[plan_.operators[call.row].name].push_back(call.row);
      }
    }
    for (const auto& [name, rows] : planned) {
      const auto found = measured.find(name);
      if (found == measured.end()) {
        continue;
      }
      const std::vector<double>& seconds = found->second;
      const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) /
                          static_cast<double>(rows.size());
      std::map<size_t, std::pair<double, int64_t>> by_row;
      for (size_t i = 0; i < rows.size(); ++i) {
        auto& [sum, calls] = by_row[rows[i]];
        sum += seconds.size() == rows.size() ? seconds[i] : mean;
        ++calls;
      }
      for (const auto& [row, times] : by_row) {
        add_row(plan_.operators[row], times.first, times.second, steps, totals);
      }
    }
    if (is_rounded_) {
      return;
    }
    totals.kernel_seconds += std::max(0.0, median(seconds_) - operators);
    for (const OperatorWork& work : plan_.kernels) {
      totals.kernel_bytes += work.bytes;
    }
  }

 private:
  /// Seconds of the calls of each operator, in their order: medians over the
  /// steps. Threads that prepare batches call operators, too, in one step or
  /// another: of a name, as many calls count as each step has.
  std::map<std::string, std::vector<double>> medians() const {
    std::vector<std::map<std::string, std::vector<double>>> by_name;
    for (const std::vector<TimedCall>& step : calls_) {
      by_name.emplace_back();
      for (const TimedCall& call : step) {
        by_name.back()[call.name].push_back(call.seconds);
      }
    }
    std::map<std::string, std::vector<double>> result;
    for (const auto& [name, first] : by_name.front()) {
      size_t count = first.size();
      for (const auto& step : by_name) {
        const auto found = step.find(name);
        count = std::min(count, found == step.end() ? 0 : found->second.size());
      }
      for (size_t i = 0; i < count; ++i) {
        std::vector<double> seconds;
        for (const auto& step : by_name) {
          seconds.push_back(step.at(name)[i]);
        }
        result[name].push_back(median(std::move(seconds)));
      }
    }
    return result;
  }

  void add_row(
      const OperatorWork& row,
      double seconds,
      int64_t calls,
      MeasuredSteps& steps,
      Totals& totals) const {
    const double work = (row.flops > 0 ? row.flops : row.bytes) /
                        static_cast<double>(row.calls);
    if (work <= 0 || seconds <= 0 ||
        (is_rounded_ && !planner::is_matrix_product(row.name))) {
      return;
    }
    steps.operators.push_back(
        {.name = row.name,
         .in_backward = row.in_backward,
         .is_rounded = is_rounded_,
         .dtype = row.dtype,
         .work = work,
         .seconds = seconds / static_cast<double>(calls)});
    if (row.flops == 0) {
      totals.other_bytes += work * static_cast<double>(calls);
      totals.other_seconds += seconds;
    }
  }

  const bool is_rounded_;
  StepMemoryPlan plan_;
  std::optional<OperatorTimer> timer_;
  std::vector<std::vector<TimedCall>> calls_; ///< by step
  std::vector<double> seconds_; ///< by step
};

} // namespace

} // namespace training_operators

planner::MeasuredSteps measure_training_operators(int64_t features) {
  using namespace training_operators;
  TESSERA_CHECK(
      features % 64 == 0,
      "--training={}: models have heads of 64 features; give a multiple of 64",
      features);
  const ScratchFolder folder;
  MeasuredSteps steps;
  Totals totals;
  for (const Arithmetic& arithmetic : arithmetics()) {
    for (const json& model : models(features)) {
      const auto write = [&](const char* name, const json& content) {
        runtime::write_file_atomically(folder.path() / name, content.dump(2));
        return folder.path() / name;
      };
      write("model.json", model);
      ModelSteps measured(arithmetic.is_rounded());
      SimulationOptions settings;
      settings.report = [&](const SimulatedRun& run) { measured.report(run); };
      tasks::simulate_training(
          tasks::read_training_config(
              write("train.json", recipe(model, arithmetic))),
          /*world_size=*/1,
          /*rank=*/0,
          kWarmUp + kMeasured,
          settings);
      measured.add_to(steps, totals);
    }
  }
  steps.kernels = totals.kernel_bytes / totals.kernel_seconds;
  steps.others = totals.other_bytes / totals.other_seconds;
  return steps;
}

} // namespace tessera::tools
