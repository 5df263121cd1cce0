// SPDX-License-Identifier: Apache-2.0
// `tessera convert --from DIR --to PATH`: converts a model's folder, or another
// engine's checkpoint, to other dtypes or to GGUF, merges an adapter into it,
// or averages several.

#include "program_main.h"
#include "size_option.h"

#include "tessera/engine/checkpoint/checkpoint_weights.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/sharding/weights/average_weights.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/gguf/gguf_export.h"
#include "tessera/zoo/models/pretrained.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

enum class Format { kHuggingFace, kGguf };

const std::map<std::string, Format> kFormats{
    {"hf", Format::kHuggingFace},
    {"gguf", Format::kGguf}};
const std::map<std::string, zoo::GgufType> kGgufTypes{
    {"f32", zoo::GgufType::kF32},
    {"f16", zoo::GgufType::kF16},
    {"q8_0", zoo::GgufType::kQ8_0}};
const std::map<std::string, at::ScalarType> kDtypes{
    {"float32", at::kFloat},
    {"bfloat16", at::kBFloat16},
    {"float16", at::kHalf}};

struct ConvertArguments {
  std::string from;
  std::string weights;
  std::vector<std::string> average;
  std::vector<double> factors;
  int64_t last = 0;
  std::string to;
  Format format = Format::kHuggingFace;
  std::string dtype = "keep";
  zoo::GgufType gguf_type = zoo::GgufType::kF16;
  std::string adapter;
  std::string architecture;
  bool no_tokenizer = false;
  int64_t max_shard_bytes = zoo::kMaxShardBytes;
};

bool is_same_place(const fs::path& a, const fs::path& b) {
  return fs::weakly_canonical(a) == fs::weakly_canonical(b);
}

/// The model whose weights a path has: its own config.json's, or that of the
/// run whose checkpoint it is; empty if there is none.
fs::path model_of_weights(const fs::path& weights) {
  if (fs::exists(weights / "config.json")) {
    return tasks::model_folder_of(weights);
  }
  const auto checkpoints = engine::checkpoints_in(weights);
  if (checkpoints.empty()) {
    return {};
  }
  // RUN/checkpoints/step-N
  const fs::path run =
      fs::canonical(checkpoints.front()).parent_path().parent_path();
  return tasks::is_run_folder(run) ? tasks::model_folder_of(run) : fs::path();
}

/// @throws tessera::Error if the adapter is a run's whose exported model, with
///     the adapter in it, is --from.
void check_merges_once(const ConvertArguments& arguments) {
  const fs::path run = fs::weakly_canonical(arguments.adapter).parent_path();
  if (arguments.adapter.empty() || !tasks::is_run_folder(run) ||
      !is_same_place(arguments.from, run / "model")) {
    return;
  }
  TESSERA_FAIL(
      "--from is '{}', the model of the run, which has the adapter '{}' already (model.lora.merge); to merge it with another dtype or format give the model that it was trained on: --from {}",
      arguments.from,
      arguments.adapter,
      zoo::read_lora_config(arguments.adapter).base_model);
}

void check_places(const ConvertArguments& arguments) {
  TESSERA_CHECK(
      !arguments.from.empty(),
      "--from is missing; give the folder of a Hugging Face model or of a run, whose config.json and tokenizer the result gets");
  TESSERA_CHECK(
      fs::is_directory(arguments.from),
      "--from is '{}', which is not a folder; give the folder of a Hugging Face model, with config.json and weights",
      arguments.from);
  TESSERA_CHECK(
      !is_same_place(arguments.from, arguments.to),
      "--to is '{}', which is the same folder as --from; choose another one",
      arguments.to);
  TESSERA_CHECK(
      !is_same_place(arguments.from, fs::path(arguments.to).parent_path()) ||
          !fs::exists(arguments.to),
      "--to is '{}', which is a file in the folder --from; choose another name",
      arguments.to);
  TESSERA_CHECK(
      !fs::exists(fs::path(arguments.to) / "config.json"),
      "--to is '{}', which contains a model; choose another folder",
      arguments.to);
  check_one_process("convert");
  check_merges_once(arguments);
  TESSERA_CHECK(
      arguments.format != Format::kGguf || !fs::is_directory(arguments.to),
      "--to is '{}', a folder; a GGUF model is a single file: give a file name, e.g. {}",
      arguments.to,
      (fs::path(arguments.to) / "model.gguf").string());
}

void convert(const ConvertArguments& arguments) {
  check_places(arguments);
  const fs::path from = arguments.from;
  zoo::FromPretrainedOptions options;
  options.architecture = arguments.architecture;
  options.weights = arguments.weights;
  options.lazy = true; // tensors are read as they are written
  if (arguments.format == Format::kHuggingFace) {
    options.dtype.reset();
    if (arguments.dtype != "keep") {
      options.dtype = kDtypes.at(arguments.dtype);
    }
  }
  if (!arguments.adapter.empty()) {
    options.unties = zoo::unties_of(zoo::read_lora_config(arguments.adapter));
  }
  const auto model = zoo::from_pretrained(from, options);
  zoo::SavedValue change;
  if (!arguments.adapter.empty()) {
    zoo::load_lora(*model, arguments.adapter);
    change = zoo::merged_values(*model);
  }
  const fs::path tokenizer = arguments.no_tokenizer ? fs::path() : from;
  if (arguments.format == Format::kHuggingFace) {
    zoo::save_pretrained(
        *model, arguments.to, tokenizer, change, arguments.max_shard_bytes);
  } else {
    if (!arguments.no_tokenizer && !fs::exists(from / "tokenizer.json")) {
      log_warning(
          "--from '{}' has no tokenizer.json, so the GGUF file has no tokenizer: programs that load it can only process token ids. Pass --no-tokenizer if this is intended.",
          arguments.from);
    }
    const fs::path name =
        from.has_filename() ? from.filename() : from.parent_path().filename();
    zoo::export_gguf(
        *model,
        arguments.to,
        {arguments.gguf_type, tokenizer, name.string()},
        change);
  }
  log_info("wrote {}", arguments.to);
}

/// What is averaged.
std::vector<sharding::AveragedWeights> averaged_weights(
    const ConvertArguments& arguments) {
  std::vector<fs::path> paths;
  for (const std::string& given : arguments.average) {
    auto found = engine::checkpoints_in(given);
    TESSERA_CHECK(
        arguments.last == 0 ||
            static_cast<int64_t>(found.size()) >= arguments.last,
        "--last is {}, but '{}' has {} checkpoints",
        arguments.last,
        given,
        found.size());
    if (found.empty()) {
      paths.emplace_back(given); // other weights
    } else {
      paths.insert(
          paths.end(),
          arguments.last == 0 ? found.end() - 1 : found.end() - arguments.last,
          found.end());
    }
  }
  TESSERA_CHECK(
      paths.size() >= 2,
      "--average names one set of weights; name several, or with --last the last checkpoints of a run");
  TESSERA_CHECK(
      arguments.factors.empty() || arguments.factors.size() == paths.size(),
      "--factors has {}, but there are {} sets of weights to average",
      runtime::count_text(
          static_cast<int64_t>(arguments.factors.size()), "number"),
      paths.size());
  std::vector<sharding::AveragedWeights> sets;
  for (size_t i = 0; i < paths.size(); ++i) {
    const double factor = arguments.factors.empty() ? 1 : arguments.factors[i];
    log_info("averaging {} x {}", factor, paths[i]);
    sets.push_back({engine::open_weights(paths[i]), factor});
  }
  return sets;
}

/// Converts the mean of several sets of weights, which is written to a file
/// beside the result first.
void convert_average(ConvertArguments arguments) {
  const fs::path to = arguments.to;
  check_one_process("convert");
  if (to.extension() == ".safetensors") {
    sharding::write_average(averaged_weights(arguments), to);
    log_info("wrote {}", arguments.to);
    return;
  }
  check_places(arguments);
  const fs::path mean =
      to.parent_path() /
      ("." + (to.has_filename() ? to : to.parent_path()).filename().string() +
       ".average.safetensors");
  if (mean.has_parent_path()) {
    fs::create_directories(mean.parent_path());
  }
  const std::shared_ptr<void> removes(nullptr, [&](void*) {
    std::error_code ignored;
    fs::remove(mean, ignored);
  });
  sharding::write_average(averaged_weights(arguments), mean);
  arguments.weights = mean.string();
  convert(arguments);
}

/// One of a table's keys; usage errors list them.
template <typename Value>
CLI::Option* add_choice(
    CLI::App& app,
    const std::string& name,
    Value& value,
    const std::map<std::string, Value>& choices,
    const std::string& description) {
  std::string listed;
  for (const auto& [key, ignored] : choices) {
    listed += (listed.empty() ? " (" : ", ") + key;
  }
  const std::string known = listed.substr(2);
  return app.add_option_function<std::string>(
      name,
      [name, known, &value, &choices](const std::string& given) {
        const auto found = choices.find(given);
        if (found == choices.end()) {
          throw CLI::ValidationError(
              name, "'" + given + "' is not one of " + known);
        }
        value = found->second;
      },
      description + listed + ")");
}

} // namespace

int run_convert(int argc, char** argv) {
  CLI::App app(
      "Converts a model's folder to other dtypes or to GGUF, merges an adapter "
      "into it, or averages several",
      "tessera convert");
  ConvertArguments arguments;
  app.add_option_function<std::string>(
      "--from",
      [&arguments](const std::string& given) {
        arguments.from = tasks::model_folder_of(given).string();
      },
      "Hugging Face folder to read, or run folder of `tessera train`, or a checkpoint of Megatron-LM");
  app.add_option(
      "--weights",
      arguments.weights,
      "File or checkpoint to read the weights from instead of --from, whose config.json and tokenizer are used (by default the model of the folder, or of the run whose checkpoint it is): safetensors, "
      "files of torch.save, checkpoints of `tessera train`, of FSDP "
      "(torch.distributed.checkpoint), of DeepSpeed with ZeRO or of Megatron-LM");
  app.add_option(
      "--average",
      arguments.average,
      "Weights to average, instead of --weights: checkpoints or run folders of `tessera train` (the newest checkpoint), files and folders of weights. "
      "Their tensors must have the same names and shapes. --from is by default the model of the first, of a checkpoint that of its run, and with --to FILE.safetensors not needed");
  app.add_option(
         "--last",
         arguments.last,
         "Average the last checkpoints, so many of each run folder of --average")
      ->check(CLI::PositiveNumber);
  app.add_option(
      "--factors",
      arguments.factors,
      "One factor for each set of weights of --average, which are divided by their sum; default: all the same");
  app.add_option("--to", arguments.to, "Folder or GGUF file to write")
      ->required();
  const CLI::Option* format = add_choice(
      app,
      "--format",
      arguments.format,
      kFormats,
      "Output format, default gguf if --to ends with .gguf, else hf");
  app.add_option(
         "--dtype",
         arguments.dtype,
         "Dtype of the weights with --format hf: keep (default), float32, bfloat16, float16")
      ->check(CLI::IsMember({"keep", "float32", "bfloat16", "float16"})
                  .description(""));
  app.add_option(
         "--max-shard-size",
         arguments.max_shard_bytes,
         "Largest size of one weight file with --format hf, e.g. 5GB; default 50GB")
      ->transform(size_in_bytes());
  const CLI::Option* type = add_choice(
      app,
      "--gguf-type",
      arguments.gguf_type,
      kGgufTypes,
      "Type of matrices with --format gguf, default f16");
  app.add_option(
      "--merge-lora",
      arguments.adapter,
      "Folder of a PEFT adapter to merge into the weights");
  app.add_option(
      "--architecture",
      arguments.architecture,
      "Model class to use instead of the one in config.json");
  app.add_flag(
      "--no-tokenizer", arguments.no_tokenizer, "Do not write the tokenizer");
  app.footer(
      "GGUF supports language models of the families chatglm, glm, glm4, gpt2, llama, "
      "qwen2, qwen2_moe, qwen3, qwen3_moe");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (format->empty() && fs::path(arguments.to).extension() == ".gguf") {
    arguments.format = Format::kGguf;
  }
  TESSERA_CHECK(
      arguments.format == Format::kGguf || type->empty(),
      "--gguf-type is only for --format gguf; use --dtype for --format hf");
  TESSERA_CHECK(
      arguments.format != Format::kGguf || arguments.dtype == "keep",
      "--dtype is only for --format hf; use --gguf-type for --format gguf");
  const bool averages = !arguments.average.empty();
  const bool needs_model =
      !averages || fs::path(arguments.to).extension() != ".safetensors";
  const std::string weights =
      averages ? arguments.average.front() : arguments.weights;
  if (needs_model && arguments.from.empty() && !weights.empty()) {
    arguments.from = model_of_weights(weights).string();
  }
  if (!averages) {
    TESSERA_CHECK(
        arguments.last == 0 && arguments.factors.empty(),
        "--last and --factors are only for --average");
    convert(arguments);
  } else {
    TESSERA_CHECK(
        arguments.weights.empty(),
        "--weights and --average both say what the weights are; give one of them");
    convert_average(arguments);
  }
  return 0;
}

} // namespace tessera::tools
