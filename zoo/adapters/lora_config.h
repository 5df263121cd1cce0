// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an adapter of low rank is (LoRA, arXiv:2106.09685), as PEFT's
// adapter_config.json says it.

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Which biases of the base model are trained and saved, too.
enum class LoraBias {
  kNone,
  kAll,
  kLoraOnly, ///< those of the layers that have an adapter
};

/// What fresh adapters start from.
enum class LoraInit {
  kDefault, ///< A uniform within 1 / sqrt(in), B zeros
  kGaussian, ///< A normal with deviation 1 / r, B zeros
  kRandom, ///< both uniform: the first step already sees the adapter
};

/// Modules by their names in transformers' checkpoints.
struct ModuleNames {
  /// Whole names, or what follows some dot in them.
  std::vector<std::string> names;
  /// In their place: a regular expression (ECMAScript) for whole names, or
  /// "all-linear".
  std::string pattern;

  bool empty() const {
    return names.empty() && pattern.empty();
  }
};

/// y = W x + scaling * B A x, where only A [r, in] and B [out, r] are trained.
struct LoraConfig {
  int64_t r = 8;
  double alpha = 8; ///< scaling is alpha / r
  double dropout = 0; ///< of x, on its way to A, while training
  /// Linear layers that get an adapter. "all-linear": all but the output
  /// embedding, the heads in modules_to_save and routers of experts.
  ModuleNames target_modules;
  ModuleNames exclude_modules;
  /// Ends of names: modules that are trained and saved whole.
  std::vector<std::string> modules_to_save;
  LoraBias bias = LoraBias::kNone;
  bool use_rslora = false; ///< scaling is alpha / sqrt(r) (arXiv:2312.03732)
  LoraInit init = LoraInit::kDefault;
  /// Other ranks and alphas: for names that end with the key, which is a
  /// regular expression.
  std::map<std::string, int64_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;
  /// PEFT's: "SEQ_CLS", "TOKEN_CLS" and "QUESTION_ANS" add the names of heads
  /// to modules_to_save. "": none. Not given: by the model's architecture.
  std::optional<std::string> task_type;
  /// Where PEFT finds the base model; may be empty.
  std::string base_model;
};

/// @throws tessera::Error on values out of range, naming them.
void check(const LoraConfig& config);

/// The content of adapter_config.json.
/// @param transposed the adapted layers of the checkpoint are [in, out], as
///     GPT-2's ("fan_in_fan_out").
nlohmann::ordered_json to_json(const LoraConfig& config, bool transposed);

/// Reads a folder's adapter_config.json.
/// @throws tessera::Error naming the file and the key: on other kinds of
///     adapters and variants that are not implemented.
LoraConfig read_lora_config(const std::filesystem::path& folder);

} // namespace tessera::zoo
