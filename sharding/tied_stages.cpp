// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tied_stages.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <map>
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

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

} // namespace

TiedStages::TiedStages(
    World& world,
    const std::string& key,
    const ParallelMesh& mesh,
    const torch::nn::Module& module,
    at::Device device) {
  const std::vector<int> ranks =
      mesh.ranks(ParallelGroup::kPipeline, world.rank());
  if (ranks.size() == 1) {
    return;
  }
  const auto entry = [&](int rank) {
    return key + "/parameters/" + std::to_string(rank);
  };
  world.store()->set(entry(world.rank()), bytes_of(forms_of(module)));
  // For each name, the ranks (one per pipeline stage) that have the parameter.
  std::map<std::string, std::vector<int>> owners;
  std::map<std::string, std::string> forms;
  for (const int rank : ranks) {
    const auto text = world.store()->get(entry(rank));
    for (const auto& [name, form] :
         parse_forms(std::string(text.begin(), text.end()))) {
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
  const auto parameters = module.named_parameters();
  std::map<std::vector<int>, Tied> of_ranks;
  for (const auto& [name, have] : owners) {
    if (have.size() == 1 || !parameters.contains(name)) {
      continue;
    }
    Tied tied{name, nullptr, nullptr};
    if (const auto known = of_ranks.find(have); known != of_ranks.end()) {
      tied.copies = known->second.copies;
      tied.control = known->second.control;
    } else {
      const std::string group =
          key + "/tied/" + name + "/" + std::to_string(have.front());
      const auto join = [&](const char* purpose, at::Device where) {
        communicators_.push_back(world.join_group(
            std::string("tied parameters' ") + purpose,
            group + "/" + purpose,
            where,
            have));
        return communicators_.back().get();
      };
      tied.copies = join("copies", device);
      tied.control = join("control", at::kCPU);
      of_ranks.emplace(have, tied);
    }
    if (have.front() != world.rank()) {
      later_.insert(parameters[name].unsafeGetTensorImpl());
    }
    tied_.push_back(std::move(tied));
  }
}

std::vector<std::string> TiedStages::names() const {
  std::vector<std::string> names;
  for (const Tied& tied : tied_) {
    names.push_back(tied.name);
  }
  return names;
}

void TiedStages::copy_values(Pager& pager) {
  const c10::NoGradGuard no_grad;
  for (const Tied& tied : tied_) {
    const size_t g = pager.parameters()[pager.find_parameter(tied.name)].group;
    ParamGroup& group = *pager.groups()[g];
    const at::Tensor values = group.read_master();
    const at::Tensor on_device = values.to(group.device());
    tied.copies->broadcast(on_device, 0, "first copy of '" + tied.name + "'")
        .wait(pager.watch_failures());
    group.write_master(on_device.to(values.device()));
  }
  if (!tied_.empty()) {
    pager.invalidate();
  }
}

void TiedStages::add_gradients(Pager& pager) {
  for (const Tied& tied : tied_) {
    const size_t g = pager.parameters()[pager.find_parameter(tied.name)].group;
    GradientBucket& bucket = *pager.bucket(g);
    const at::Tensor flags = at::tensor(
        {bucket.got_gradient(0) ? 1 : 0, bucket.has_copies() ? 1 : 0},
        at::kInt);
    tied.control->all_reduce_max(flags, "agreement on '" + tied.name + "'")
        .wait(pager.watch_failures());
    const auto* seen = flags.const_data_ptr<int>();
    if (seen[0] == 0 || seen[1] != 0) {
      continue;
    }
    pager.before_gradients_change(g);
    bucket.add_copies(*tied.copies, pager.watch_failures());
  }
}

} // namespace tessera::sharding
