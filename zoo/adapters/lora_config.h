// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LoraConfig` holds the options of a LoRA adapter (arXiv:2106.09685), as in
// PEFT's adapter_config.json.

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

/// The biases of the base model that are trained and saved, too.
enum class LoraBias {
  kNone,
  kAll,
  kLoraOnly, ///< those of the layers that have an adapter
};

/// The initial values of adapters.
enum class LoraInit {
  kDefault, ///< A uniform within +-1 / sqrt(in), B zeros
  kGaussian, ///< A normal with standard deviation 1 / r, B zeros
  kRandom, ///< both uniform: the adapter already acts in the first step
  /// PiSSA (arXiv:2404.02948): scaling * B A is the part of W with its r
  /// largest singular values, which W loses.
  kPissa,
};

/// Modules, by their names in transformers' checkpoints.
struct ModuleNames {
  /// Whole names, or suffixes of them that follow a dot.
  std::vector<std::string> names;
  /// Instead of `names`: a regular expression (ECMAScript) for whole names, or
  /// "all-linear".
  std::string pattern;

  bool empty() const {
    return names.empty() && pattern.empty();
  }
};

/// y = W x + scaling * B A x, where only A [r, in] and B [out, r] are trained;
/// with use_dora the lengths of the rows of W + scaling * B A, too.
struct LoraConfig {
  int64_t r = 8;
  double alpha = 8; ///< scaling is alpha / r
  double dropout = 0; ///< of the input of A, while training
  /// Linear layers that get an adapter. "all-linear": all except the output
  /// embedding, the heads in modules_to_save and the routers of experts.
  ModuleNames target_modules;
  ModuleNames exclude_modules;
  /// Name suffixes of modules that are trained and saved whole.
  std::vector<std::string> modules_to_save;
  /// If an embedding or a head in modules_to_save share their weight: they are
  /// trained as one. Otherwise each has a weight of its own, as by PEFT.
  bool ensure_weight_tying = false;
  LoraBias bias = LoraBias::kNone;
  bool use_rslora = false; ///< scaling is alpha / sqrt(r) (arXiv:2312.03732)
  /// DoRA (arXiv:2402.09353): the rows of W + scaling * B A get trained
  /// lengths, at first those of W.
  bool use_dora = false;
  /// If not empty: only layers of these numbers get an adapter, unless
  /// target_modules has their whole name. As in PEFT, the number is the first
  /// one in a name that follows at least two words ("model.layers.3."), or the
  /// first that follows one of layers_pattern. Not with an expression in
  /// target_modules.
  std::vector<int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern; ///< regular expressions
  LoraInit init = LoraInit::kDefault;
  /// Ranks and alphas of particular layers. A key is a regular expression that
  /// matches the end of a layer's name; the first one in alphabetical order
  /// applies, as in an adapter that PEFT has saved.
  std::map<std::string, int64_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;
  /// PEFT's task type: "SEQ_CLS", "TOKEN_CLS" and "QUESTION_ANS" add the names
  /// of heads to modules_to_save; "" is none. nullopt: inferred from the
  /// model's architecture.
  std::optional<std::string> task_type;
  /// Where PEFT finds the base model; may be empty.
  std::string base_model;
};

/// The fields of the section `model.lora`.
void visit_fields(runtime::OptionFields& fields, LoraConfig& lora);

/// @throws tessera::Error on a value out of range, naming it as in a
///   configuration.
void check(const LoraConfig& config);

/// Returns the content of adapter_config.json.
/// @param transposed whether the checkpoint stores the adapted layers as [in,
///     out], as GPT-2 does ("fan_in_fan_out").
nlohmann::ordered_json to_json(const LoraConfig& config, bool transposed);

/// Whether PEFT regards modules with ensure_weight_tying: it knows an embedding
/// and a head that share their weight by the names embed_tokens and lm_head.
bool lora_ties(const std::vector<std::string>& modules);

/// The names of the adapters in a folder: PEFT writes "default" into the folder
/// itself, and others into folders in it that are called as they. Sorted, but
/// for "default", which is first.
std::vector<std::string> adapters_in(const std::filesystem::path& folder);

/// The folder of one of them.
/// @throws tessera::Error with the names that there are.
std::filesystem::path adapter_folder(
    const std::filesystem::path& folder,
    const std::string& name);

/// Reads a folder's adapter_config.json. LoraConfig::ensure_weight_tying is set
/// if PEFT trained a shared weight as one, for which it also must be in its
/// files under both names, or lora_ties().
/// @throws tessera::Error naming the file and the key, on other kinds of
///     adapters and on variants that are not implemented.
LoraConfig read_lora_config(const std::filesystem::path& folder);

} // namespace tessera::zoo
