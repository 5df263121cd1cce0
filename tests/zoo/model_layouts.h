// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every model of the fixtures under every layout of ranks, and those that are
// refused there.

#include "support/expect_error.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tessera::zoo {

enum class ModelLayout {
  kTensor, ///< layers divided
  kSequence, ///< and sequences between them
  kPipeline,
  kShards, ///< ZeRO-3
  kUlysses, ///< sequences divided over context-parallel ranks
  kRing, ///< the same, in the other way
};

/// Models that a layout does not take, and how the error says so.
struct Refusal {
  ModelLayout layout;
  std::vector<std::string> models; ///< "swin_*": all that begin so
  const char* reason;
  const char* remedy;

  bool has(const std::string& model) const {
    return std::any_of(models.begin(), models.end(), [&](const auto& one) {
      return matches(one, model);
    });
  }

  static bool matches(const std::string& one, const std::string& model) {
    return one.ends_with('*') ? model.starts_with(one.substr(0, one.size() - 1))
                              : model == one;
  }
};

inline const std::vector<Refusal>& refusals() {
  using Layout = ModelLayout;
  static const std::vector<Refusal> all{
      // Windows are cut out of whole maps between layers.
      {Layout::kSequence, {"swin_*"}, "whole feature maps", "turn it off"},
      // Padding an image would change it: 5, 21, 5 and 17 tokens of 2 ranks.
      {Layout::kSequence,
       {"mae_wide", "vit_base", "vit_labels", "vit_masked"},
       "tokens are not divisible",
       "turn off sequence parallelism"},
      // Windows with global tokens and patches need what other ranks have;
      // images are short.
      {Layout::kUlysses,
       {"longformer*", "mae*", "moco", "swin_*", "vit_*"},
       "does not support context parallelism",
       "context size of 1"},
      {Layout::kRing,
       {"longformer*", "mae*", "moco", "swin_*", "vit_*"},
       "does not support context parallelism",
       "context size of 1"},
      {Layout::kUlysses,
       {"mpt"},
       "3 heads are not divisible by 2",
       "use a context size of 1, 3"},
      // A ring has keys of one rank at a time: no biases.
      {Layout::kRing,
       {"cpm1*", "cpm2*", "cpm3*", "mpt", "mt5*", "t5*"},
       "ring attention does not support biases",
       "Ulysses"}};
  return all;
}

/// The folders of the fixtures.
inline std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(fixture("models"))) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Null where the layout takes the model.
inline const Refusal* refusal(ModelLayout layout, const std::string& model) {
  for (const Refusal& one : refusals()) {
    if (one.layout == layout && one.has(model)) {
      return &one;
    }
  }
  return nullptr;
}

/// Runs `check` for each of them, and expects the error of those that are
/// refused. On each rank: all must throw where one does.
inline void for_every_model(
    ModelLayout layout,
    const std::function<void(const std::string& name)>& check) {
  const std::vector<std::string> names = model_names();
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    if (const Refusal* refused = refusal(layout, name)) {
      expect_error([&] { check(name); }, {refused->reason, refused->remedy});
      continue;
    }
    try {
      check(name);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  for (const Refusal& one : refusals()) {
    for (const std::string& refused : one.models) {
      EXPECT_TRUE(std::any_of(
          names.begin(),
          names.end(),
          [&](const std::string& name) {
            return Refusal::matches(refused, name);
          }))
          << refused << " is refused, and there is no such model";
    }
  }
}

} // namespace tessera::zoo
