// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/tied_parameters.h"

#include "tessera/runtime/comm/group_store.h"
#include "tessera/runtime/comm/simulated_job.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <sstream>

namespace tessera::sharding {

namespace {

/// Describes the trainable parameters of a pipeline stage, one line each: "name
/// form".
std::string forms_of(const torch::nn::Module& module) {
  std::ostringstream lines;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) {
      lines << item.key() << ' ' << item.value().sizes() << ' '
            << item.value().scalar_type() << '\n';
    }
  }
  return lines.str();
}

std::map<std::string, std::string> parse_forms(const std::string& text) {
  std::map<std::string, std::string> forms;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    forms.emplace(line.substr(0, space), line.substr(space + 1));
  }
  return forms;
}

/// Checks that all names of a parameter say the same of who has it.
/// @param owners as find_tied_parameters().
void check_names_agree(
    const torch::nn::Module& module,
    const std::map<std::string, std::vector<int>>& owners) {
  std::map<const c10::TensorImpl*, std::string> first_names;
  for (const auto& item : module.named_parameters()) {
    if (owners.count(item.key()) == 0) {
      continue;
    }
    const auto [known, is_new] =
        first_names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    TESSERA_CHECK(
        owners.at(known->second) == owners.at(item.key()),
        "wrap: '{}' and '{}' are one parameter here, but some pipeline stages have only one of the two. Give a parameter the same names on all pipeline stages.",
        known->second,
        item.key());
  }
}

/// Without those of a simulated job in whose place another is run.
std::vector<int> ranks_that_run(const World& world, std::vector<int> ranks) {
  if (world.simulation() != nullptr) {
    std::erase_if(ranks, [&](int rank) {
      return world.simulation()->has_stand_in(rank);
    });
  }
  return ranks;
}

} // namespace

std::map<std::string, std::vector<int>> find_tied_parameters(
    World& world,
    const std::vector<int>& all_ranks,
    const torch::nn::Module& module) {
  const std::string key = world.unique_name("parameters of pipeline stages");
  if (all_ranks.size() == 1) {
    return {};
  }
  const std::vector<int> ranks = ranks_that_run(world, all_ranks);
  const auto local = std::find(ranks.begin(), ranks.end(), world.rank());
  runtime::GroupStore store(
      world.store(),
      {"comparing the parameters of pipeline stages",
       key + "/" + std::to_string(ranks.front()),
       static_cast<int>(local - ranks.begin()),
       ranks},
      world.store()->getTimeout());
  const auto entry = [](int rank) { return std::to_string(rank); };
  store.set(entry(world.rank()), runtime::to_bytes(forms_of(module)));
  std::map<std::string, std::vector<int>> owners;
  std::map<std::string, std::string> forms;
  for (const int rank : ranks) {
    for (const auto& [name, form] :
         parse_forms(runtime::to_text(store.get(entry(rank))))) {
      const auto [known, is_new] = forms.emplace(name, form);
      TESSERA_CHECK(
          known->second == form,
          "wrap: the pipeline stages have different parameters named '{}': {} and, on rank {}, {}. Parameters with the same name are one parameter; give different parameters different names.",
          name,
          known->second,
          rank,
          form);
      owners[name].push_back(rank);
    }
  }
  std::erase_if(owners, [&](const auto& owned) {
    const std::vector<int>& have = owned.second;
    return have.size() == 1 ||
           std::find(have.begin(), have.end(), world.rank()) == have.end();
  });
  check_names_agree(module, owners);
  return owners;
}

} // namespace tessera::sharding
