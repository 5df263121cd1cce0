// SPDX-License-Identifier: Apache-2.0
#pragma once
// The registry of model families, and from_config(), which constructs a model
// from a config.json.

#include "tessera/zoo/formats/config_fields.h"
#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/models/model.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Constructs the model of one architecture.
/// @param json the whole config.json, which the model keeps; `fields` reads it.
using MakeModel = std::function<std::shared_ptr<Model>(
    const ConfigFields& fields,
    const LayerContext& context,
    nlohmann::json json)>;

struct Architecture {
  std::string name; ///< transformers' class, such as "GPT2LMHeadModel"
  MakeModel make;
};

/// The models of one `model_type`.
struct ModelFamily {
  std::string model_type; ///< as in config.json, such as "gpt2"
  /// The first is the default if config.json names no architecture.
  std::vector<Architecture> architectures;
  /// Model::position_limit() of models with these fields; empty: not known
  /// before a model is constructed.
  std::function<std::optional<int64_t>(const ConfigFields& fields)>
      position_limit = {};
};

/// Adds a family to the built-in ones. Not thread-safe: call it while no other
/// thread uses the registry.
/// @throws tessera::Error if a family of that type exists.
void register_model(ModelFamily family);

/// The model types of all families.
std::vector<std::string> registered_models();

/// Model::position_limit() of a config.json, for which no model is constructed.
/// @return nullopt also if the family does not say, and on a configuration of
///     which from_config() makes no model.
std::optional<int64_t> position_limit_in(
    const nlohmann::json& config,
    const std::string& origin = "config.json");

/// What the head of a model has to be.
struct WantedHead {
  std::string label; ///< in messages: "a classifier of texts"
  std::function<bool(const Head& head)> accepts; ///< empty: any
};

/// The first architecture of config.json's family whose head is accepted.
/// Models are constructed without memory to ask for theirs; no random numbers
/// are drawn.
/// @throws tessera::Error if there is none, listing those that exist.
std::string architecture_with_head(
    const nlohmann::json& config,
    const WantedHead& head,
    const std::string& origin = "config.json");

/// The architecture of config.json's family that returns the hidden states of a
/// sequence: the encoder alone where that exists, else the base model.
std::string base_architecture(
    const nlohmann::json& config,
    const std::string& origin = "config.json");

struct FromConfigOptions {
  /// Overrides the architecture in config.json, for example to read an encoder
  /// as a classifier.
  std::string architecture;
  LayerContext context; ///< plain or tensor-parallel layers
  /// The checkpoint that will be loaded; it decides what config.json leaves
  /// open, such as whether the head is tied. Null for newly initialized
  /// weights.
  const CheckpointTensors* checkpoint = nullptr;
  /// Receives the fields read from config.json, for later messages. May be
  /// null.
  std::shared_ptr<FieldRecord> record;
  HeadWeight head_weight = HeadWeight::kAsSaved;
};

/// Constructs a model with newly initialized weights. With a tensor-parallel
/// group its parameters have no memory until init_parameters() and
/// materialize(), or wrap().
/// @param config the content of a config.json; ModelCenter's field names are
///     accepted as well, see model_center.h.
/// @param origin the name of the configuration in messages.
/// @throws tessera::Error naming the field, on unknown model types or
///     architectures and on variants that are not implemented.
std::shared_ptr<Model> from_config(
    const nlohmann::json& config,
    const FromConfigOptions& options = {},
    const std::string& origin = "config.json");

} // namespace tessera::zoo
