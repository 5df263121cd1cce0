// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/registry.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/sharding/expert_parallel/divided_experts.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/formats/model_center.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/models/families.h"

#include <exception>
#include <map>
#include <utility>

namespace tessera::zoo {

namespace {

using Families = std::map<std::string, ModelFamily>;

/// The registry, including user-defined families; it lives as long as the
/// process.
Families& families() {
  static Families all = [] {
    Families built_in;
    for (ModelFamily& family : built_in_families()) {
      std::string type = family.model_type;
      built_in.emplace(std::move(type), std::move(family));
    }
    return built_in;
  }();
  return all;
}

const ModelFamily& family_of(const ConfigFields& fields) {
  const auto type = fields.get<std::string>({"model_type"}, "");
  TESSERA_CHECK(
      !type.empty(),
      "{} lacks 'model_type', which determines the kind of model; the supported ones are {}",
      fields.origin(),
      runtime::join_names(registered_models()));
  const auto found = families().find(type);
  TESSERA_CHECK(
      found != families().end(),
      "{}: model_type '{}' is not implemented; the supported ones are {}. Others can be added with zoo::register_model().",
      fields.origin(),
      type,
      runtime::join_names(registered_models()));
  return found->second;
}

std::string named_architecture(
    const ConfigFields& fields,
    const ModelFamily& family) {
  const auto list = fields.json("architectures");
  if (!list || (list->is_array() && list->empty())) {
    return family.architectures.front().name;
  }
  TESSERA_CHECK(
      list->is_array() && list->front().is_string(),
      "{}: 'architectures' is {}; it must be a list of names",
      fields.origin(),
      runtime::show_json(*list));
  return list->front().get<std::string>();
}

const Architecture& architecture_of(
    const ModelFamily& family,
    const std::string& name,
    const std::string& origin) {
  std::vector<std::string> names;
  for (const Architecture& one : family.architectures) {
    if (one.name == name) {
      return one;
    }
    names.push_back(one.name);
  }
  TESSERA_FAIL(
      "{}: the architecture '{}' (the first of 'architectures' unless one was chosen) is not implemented; the family {} has {}: choose one with --architecture, model.architecture or, in a program, FromConfigOptions::architecture",
      origin,
      name,
      family.model_type,
      runtime::join_names(names));
}

/// The first line; LibTorch's errors continue with a stack trace.
std::string first_line(const std::string& message) {
  return message.substr(0, message.find('\n'));
}

/// Constructs the model and adds the file and its fields to errors, since
/// layers do not know where their sizes come from.
std::shared_ptr<Model> made_of(
    const Architecture& architecture,
    const ConfigFields& fields,
    const LayerContext& context,
    nlohmann::json config,
    const std::string& origin) {
  try {
    auto model = architecture.make(fields, context, std::move(config));
    if (const TensorParallel* tp = context.parallel()) {
      apply_tensor_plan(*model, model->tensor_plan(tp->group->size()), *tp);
    }
    return model;
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.find(origin) != std::string::npos) {
      TESSERA_FAIL(
          "{} (read as a {}, see 'architectures')", message, architecture.name);
    }
    TESSERA_FAIL(
        "{}: {}; fields of the file: {}",
        origin,
        message,
        fields.record().text());
  } catch (const std::exception& error) {
    TESSERA_FAIL(
        "{}: a model of these sizes cannot be made ({}); fields of the file: {}",
        origin,
        first_line(error.what()),
        fields.record().text());
  }
}

} // namespace

void register_model(ModelFamily family) {
  TESSERA_CHECK(
      !family.model_type.empty() && !family.architectures.empty(),
      "register_model: the family '{}' needs a model_type and an architecture",
      family.model_type);
  std::string type = family.model_type;
  TESSERA_CHECK(
      families().emplace(type, std::move(family)).second,
      "register_model: the family '{}' already exists",
      type);
}

std::vector<std::string> registered_models() {
  std::vector<std::string> types;
  for (const auto& [type, family] : families()) {
    types.push_back(type);
  }
  return types;
}

std::optional<int64_t> position_limit_in(
    const nlohmann::json& config,
    const std::string& origin) {
  try {
    const ConfigFields fields(
        is_model_center(config) ? from_model_center(config, origin) : config,
        origin);
    const ModelFamily& family = family_of(fields);
    return family.position_limit ? family.position_limit(fields) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt; // from_config() says what is wrong
  }
}

std::string architecture_with_head(
    const nlohmann::json& config,
    const WantedHead& head,
    const std::string& origin) {
  if (is_model_center(config)) {
    return architecture_with_head(
        from_model_center(config, origin), head, origin);
  }
  const ModelFamily& family = family_of(ConfigFields(config, origin));
  std::vector<std::string> names;
  std::exception_ptr wrong; // with one, none may be found
  for (const Architecture& one : family.architectures) {
    try {
      const auto model = lazy(
          [&] {
            return from_config(config, {.architecture = one.name}, origin);
          },
          {.seed = 0});
      const auto found = model->head();
      if (found != nullptr && head.accepts(*found)) {
        return one.name;
      }
    } catch (const Error&) {
      wrong = std::current_exception();
    }
    names.push_back(one.name);
  }
  if (wrong) {
    std::rethrow_exception(wrong);
  }
  TESSERA_FAIL(
      "{}: {} has no {}, only {}; use another model",
      origin,
      family.model_type,
      head.label,
      runtime::join_names(names));
}

std::string base_architecture(
    const nlohmann::json& config,
    const std::string& origin) {
  if (is_model_center(config)) {
    return base_architecture(from_model_center(config, origin), origin);
  }
  const ModelFamily& family = family_of(ConfigFields(config, origin));
  std::string base;
  for (const Architecture& one : family.architectures) {
    if (one.name.ends_with("EncoderModel")) {
      return one.name;
    }
    // The language model's name may end with it too, as in GPT2LMHeadModel.
    if (one.name.ends_with("Model") &&
        (base.empty() || one.name.size() < base.size())) {
      base = one.name;
    }
  }
  TESSERA_CHECK(
      !base.empty(), "{}: {} has no base model", origin, family.model_type);
  return base;
}

std::shared_ptr<Model> from_config(
    const nlohmann::json& config,
    const FromConfigOptions& options,
    const std::string& origin) {
  if (is_model_center(config)) {
    const nlohmann::json renamed = from_model_center(config, origin);
    try {
      return from_config(renamed, options, origin);
    } catch (const Error& error) {
      TESSERA_FAIL(
          "{}; in this file {}",
          error.what(),
          model_center_names(config, origin));
    }
  }
  const ConfigFields fields(
      config, origin, options.checkpoint, options.record, options.head_weight);
  const ModelFamily& family = family_of(fields);
  const Architecture& architecture = architecture_of(
      family,
      options.architecture.empty() ? named_architecture(fields, family)
                                   : options.architecture,
      origin);
  nlohmann::json kept = config;
  kept["architectures"] = {architecture.name};
  auto model =
      made_of(architecture, fields, options.context, std::move(kept), origin);
  TESSERA_CHECK(
      options.context.context() == nullptr || model->divides_sequences(),
      "{}: a {} does not support context parallelism; use a context size of 1",
      origin,
      architecture.name);
  TESSERA_CHECK(
      options.context.experts() == nullptr ||
          options.context.experts()->group->size() == 1 ||
          !model->stage().is_complete() ||
          sharding::has_divided_experts(*model),
      "{}: a {} has no experts to divide over ranks; use an expert size of 1",
      origin,
      architecture.name);
  return model;
}

} // namespace tessera::zoo
