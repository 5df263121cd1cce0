// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/page_ranks.h"

#include "tessera/runtime/comm/exception_text.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/plans/plan_cursor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>

namespace tessera::sharding {

namespace {

/// Whether a signature contains the names of divided experts.
enum class ExpertNames { kIncluded, kLeftOut };

std::string signature_of(
    const std::vector<PageSpec>& pages,
    ExpertNames experts) {
  std::ostringstream text;
  for (const PageSpec& page : pages) {
    const bool is_named = experts == ExpertNames::kIncluded || !page.of_experts;
    text << (is_named ? page.name : "experts") << ":";
    for (const PagedParameter& parameter : page.parameters) {
      const ParameterRecord& record = parameter.record;
      text << (is_named ? record.name() : "") << record.tensor.sizes()
           << record.tensor.scalar_type() << record.dtype
           << record.tensor.requires_grad();
      if (const auto* deferred =
              deferred_init(*record.tensor.storage().unsafeGetStorageImpl())) {
        text << "deferred" << deferred->seeds.size() << source_of(*deferred);
      }
      text << ";";
    }
  }
  return text.str();
}

/// A parameter in a comparison of modules, of which all fields are to be equal.
struct ParameterAccount {
  std::string name;
  std::string text; ///< dtypes, shape, what it is for
  std::string group;
};

/// What a signature is of, three lines for each parameter.
std::string accounts_of(
    const std::vector<PageSpec>& pages,
    ExpertNames experts) {
  std::ostringstream text;
  int experts_left_out = 0;
  for (const PageSpec& page : pages) {
    const bool is_named = experts == ExpertNames::kIncluded || !page.of_experts;
    for (const PagedParameter& parameter : page.parameters) {
      const ParameterRecord& record = parameter.record;
      text << (is_named ? record.name()
                        : formatted("{} of experts", experts_left_out++))
           << "\n"
           << record.tensor.scalar_type() << " " << record.tensor.sizes()
           << ", used in " << record.dtype
           << (record.tensor.requires_grad() ? ", trained" : ", frozen");
      const auto* deferred =
          deferred_init(*record.tensor.storage().unsafeGetStorageImpl());
      if (deferred != nullptr) {
        text << ", lazy";
        if (const std::string source = source_of(*deferred); !source.empty()) {
          text << " (" << source << ")";
        }
      }
      text << "\n" << (is_named ? page.name : "experts") << "\n";
    }
  }
  return text.str();
}

std::vector<ParameterAccount> read_accounts(const std::string& text) {
  std::vector<ParameterAccount> accounts;
  std::istringstream lines(text);
  ParameterAccount account;
  while (std::getline(lines, account.name) &&
         std::getline(lines, account.text) &&
         std::getline(lines, account.group)) {
    accounts.push_back(account);
  }
  return accounts;
}

/// What the ranks' accounts differ in: the first parameter that one of them has
/// alone, else the first that is another, else the first in another group.
std::string first_difference(
    const std::string& first_text,
    int first_rank,
    const std::string& other_text,
    int other_rank) {
  const std::vector<ParameterAccount> first = read_accounts(first_text);
  const std::vector<ParameterAccount> other = read_accounts(other_text);
  const auto find = [](const std::vector<ParameterAccount>& accounts,
                       const std::string& name) {
    return std::find_if(accounts.begin(), accounts.end(), [&](const auto& one) {
      return one.name == name;
    });
  };
  const auto only_on = [&](const std::vector<ParameterAccount>& accounts,
                           int rank,
                           const std::vector<ParameterAccount>& others,
                           int rank_without) -> std::optional<std::string> {
    for (const ParameterAccount& one : accounts) {
      if (find(others, one.name) == others.end()) {
        return formatted(
            "parameter '{}' ({}) is on rank {} and not on rank {}",
            one.name,
            one.text,
            rank,
            rank_without);
      }
    }
    return std::nullopt;
  };
  if (const auto text = only_on(first, first_rank, other, other_rank)) {
    return *text;
  }
  if (const auto text = only_on(other, other_rank, first, first_rank)) {
    return *text;
  }
  for (const auto field : {&ParameterAccount::text, &ParameterAccount::group}) {
    const std::string in =
        field == &ParameterAccount::group ? "in the group " : "";
    for (const ParameterAccount& one : first) {
      const ParameterAccount& same = *find(other, one.name);
      if (one.*field != same.*field) {
        return formatted(
            "parameter '{}' is {}{} on rank {} and {}{} on rank {}",
            one.name,
            in,
            one.*field,
            first_rank,
            in,
            same.*field,
            other_rank);
      }
    }
  }
  return "their parameters come in another order or are initialized otherwise";
}

int64_t hash_of_text(const std::string& text) {
  return static_cast<int64_t>(std::hash<std::string>{}(text));
}

int64_t hash_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    text += std::to_string(rank) + ",";
  }
  return hash_of_text(text);
}

/// Lazy parameters, and what each is filled from (source_of()).
std::map<std::string, std::string> lazy_sources(
    const std::vector<PageSpec>& pages) {
  std::map<std::string, std::string> sources;
  for (const PageSpec& page : pages) {
    for (const PagedParameter& parameter : page.parameters) {
      const auto* deferred = deferred_init(
          *parameter.record.tensor.storage().unsafeGetStorageImpl());
      if (deferred != nullptr) {
        sources.emplace(parameter.record.name(), source_of(*deferred));
      }
    }
  }
  return sources;
}

/// Files that fill lazy parameters of a pipeline stage, by
/// DeferredInit::files_contents: their identity, and one of the parameters.
using StageFiles = std::map<std::string, std::pair<std::string, std::string>>;

StageFiles stage_files(const std::vector<PageSpec>& pages) {
  StageFiles files;
  for (const PageSpec& page : pages) {
    for (const PagedParameter& parameter : page.parameters) {
      const auto* deferred = deferred_init(
          *parameter.record.tensor.storage().unsafeGetStorageImpl());
      if (deferred != nullptr && !deferred->files_identity.empty()) {
        files.try_emplace(
            deferred->files_contents,
            deferred->files_identity,
            parameter.record.name());
      }
    }
  }
  return files;
}

/// The error of two pipeline stages whose lazy parameters are of two models;
/// empty: they may be of one. Files that have other tensors, as those of a
/// stage alone, are not compared, nor seeds: layers may have their own.
std::string difference_of_stages(
    const StageFiles& first,
    int first_rank,
    const StageFiles& other,
    int other_rank) {
  for (const auto& [contents, files] : first) {
    const auto found = other.find(contents);
    if (found != other.end() && found->second.first != files.first) {
      return formatted(
          "wrap: the weights in the files of lazy parameters are not the same on all pipeline stages: '{}' on rank {} is from other ones ({}) than '{}' on rank {} ({}), with tensors of the same names and shapes. Load the same files on every rank, or copies of them.",
          found->second.second,
          other_rank,
          found->second.first,
          files.second,
          first_rank,
          files.first);
    }
  }
  return "";
}

/// Seeds of lazy parameters, each once, with the first parameter of each.
using LazySeedsByName =
    std::vector<std::pair<std::string, std::shared_ptr<uint64_t>>>;

LazySeedsByName lazy_seeds(const torch::nn::Module& module) {
  LazySeedsByName seeds;
  for (const auto& item : module.named_parameters()) {
    if (!is_deferred(item.value())) {
      continue;
    }
    for (const auto& seed :
         deferred_init(*item.value().storage().unsafeGetStorageImpl())->seeds) {
      if (std::none_of(seeds.begin(), seeds.end(), [&](const auto& known) {
            return known.second == seed;
          })) {
        seeds.emplace_back(item.key(), seed);
      }
    }
  }
  return seeds;
}

/// The error of ranks that fill slices of the same parameters; empty: they have
/// the same seeds. Collective.
std::string find_other_seeds(
    Communicator& group,
    const std::vector<int>& ranks,
    const LazySeedsByName& seeds,
    const WaitCheck& check) {
  using Seeds = std::vector<std::pair<std::string, uint64_t>>;
  Seeds local;
  for (const auto& [name, seed] : seeds) {
    local.emplace_back(name, *seed);
  }
  const std::vector<std::string> texts = runtime::gather_texts(
      group,
      nlohmann::json(local).dump(),
      "comparison of the seeds of lazy parameters",
      check);
  const Seeds first = nlohmann::json::parse(texts.front());
  for (size_t r = 1; r < texts.size(); ++r) {
    const Seeds other = nlohmann::json::parse(texts[r]);
    for (size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
      // Ranks with other experts have parameters of other names.
      if (first[i].first == other[i].first &&
          first[i].second != other[i].second) {
        return formatted(
            "wrap: lazy parameter '{}' has the seed {} on rank {} and {} on rank {}, which fill parts of the same tensor. Give LazyOptions::seed, or before lazy() torch::manual_seed(), the same number on every rank.",
            first[i].first,
            first[i].second,
            ranks[0],
            other[i].second,
            ranks[r]);
      }
    }
  }
  return "";
}

/// The place in `module` of the first rank that has the same experts.
int first_with_same_experts(
    const DeviceMesh& module,
    const std::vector<PageSpec>& pages) {
  const auto found =
      std::find_if(pages.begin(), pages.end(), [](const PageSpec& page) {
        return page.of_experts;
      });
  return found == pages.end()
             ? 0
             : module.position_of(
                   found->mesh.slice({kShardAxis}).ranks().front());
}

void broadcast_seeds(PageRanks& ranks, const torch::nn::Module& module) {
  const auto seeds = lazy_seeds(module);
  if (seeds.empty()) {
    return;
  }
  const at::Tensor values =
      at::empty({static_cast<int64_t>(seeds.size())}, at::kLong);
  for (size_t i = 0; i < seeds.size(); ++i) {
    values[static_cast<int64_t>(i)] = static_cast<int64_t>(*seeds[i].second);
  }
  ranks.control()
      .broadcast(values, 0, "broadcast of the seeds of lazy parameters")
      .wait();
  for (size_t i = 0; i < seeds.size(); ++i) {
    *seeds[i].second =
        static_cast<uint64_t>(values[static_cast<int64_t>(i)].item<int64_t>());
  }
}

const char* describe_use(FileUse use) {
  switch (use) {
    case FileUse::kSave:
      return "saves a checkpoint";
    case FileUse::kLoad:
      return "loads a checkpoint";
    case FileUse::kLoadWeights:
      return "loads weights";
    case FileUse::kGiveValues:
      return "lists the tensors of the model or writes their values";
  }
  return "uses files";
}

/// Of two texts of ValueHashes.
ValueDifference difference_of(
    int rank,
    const std::string& text,
    int other_rank,
    const std::string& other_text) {
  const std::vector<std::string> names =
      ValueHashes::from_text(text).other_than(
          ValueHashes::from_text(other_text));
  return {
      formatted("rank {} and rank {}", rank, other_rank),
      formatted("'{}'", names.front()) +
          (names.size() > 1 ? formatted(" and {} more", names.size() - 1)
                            : "")};
}

} // namespace

PageRanks::PageRanks(
    World& world,
    const PageMeshes& meshes,
    const std::vector<PageSpec>& pages)
    : model_(meshes.model),
      key_(world.unique_name("pages")),
      agreement_(
          world,
          "engine",
          meshes.module.ranks(),
          [this](const RankIntent& intent) { return describe(intent); }),
      stage_waits_(agreement_, meshes) {
  const c10::Device device = pages.front().device;
  connect(world, meshes.module, device);
  for (const PageSpec& page : pages) {
    if (page.tied_name.empty()) {
      connect(world, page.mesh, device);
    }
    names_.pages.push_back(page.name);
    for (const PagedParameter& parameter : page.parameters) {
      names_.parameters.push_back(parameter.record.name());
    }
  }
  // In an order that is the same on all pipeline stages.
  for (const auto& [name, mesh] : meshes.tied) {
    connect(world, mesh, device);
  }
  for (const char* axis : {kTensorAxis, kPipelineAxis}) {
    if (model_.size(axis) > 1) {
      const std::vector<int> ranks = model_.slice({axis}).ranks();
      parts_.push_back(
          {axis,
           join(world, std::string(axis) + " control", at::kCPU, ranks),
           device.is_cpu() ? nullptr
                           : join(world, "parts of a model", device, ranks)});
    }
  }
  for (const std::string& problem :
       {first_over_parts(find_other_module(meshes, pages)),
        first_over_parts(find_other_sources(pages))}) {
    TESSERA_CHECK(problem.empty(), "{}", problem);
  }
}

Communicator* PageRanks::join(
    World& world,
    const std::string& purpose,
    c10::Device device,
    const std::vector<int>& ranks) {
  std::unique_ptr<Communicator>& known = communicators_[{purpose, ranks}];
  if (known == nullptr) {
    known = world.join_group(
        "engine " + purpose,
        key_ + "/" + purpose + "/" + std::to_string(hash_of(ranks)),
        device,
        ranks);
  }
  return known.get();
}

void PageRanks::connect(
    World& world,
    const DeviceMesh& mesh,
    c10::Device device) {
  if (std::any_of(meshes_.begin(), meshes_.end(), [&](const auto& known) {
        return known->mesh() == mesh;
      })) {
    return;
  }
  const auto along =
      [&](const char* axis, const std::string& purpose, c10::Device where) {
        return join(world, purpose, where, mesh.slice({axis}).ranks());
      };
  MeshRanks::Communicators joined{};
  joined.shards = along(kShardAxis, "shards", device);
  joined.reductions =
      device.is_cpu() ? joined.shards : along(kShardAxis, "reductions", device);
  joined.replicas = along(kReplicateAxis, "replicas", device);
  if (mesh.has(kPartAxis) && !device.is_cpu()) {
    joined.parts = along(kPartAxis, "other experts", device);
  }
  if (mesh.has(kPipelineAxis)) {
    joined.copies = along(kPipelineAxis, "copies", device);
    joined.copies_control = along(kPipelineAxis, "copies control", at::kCPU);
  }
  meshes_.push_back(std::make_unique<MeshRanks>(mesh, joined));
}

MeshRanks& PageRanks::of(const PageSpec& page) {
  return **std::find_if(meshes_.begin(), meshes_.end(), [&](const auto& ranks) {
    return ranks->mesh() == page.mesh;
  });
}

std::string PageRanks::find_other_module(
    const PageMeshes& meshes,
    const std::vector<PageSpec>& pages) {
  if (size() == 1) {
    return "";
  }
  // Experts are compared by name with those of ranks that have the same ones.
  const at::Tensor self_tensor = at::tensor(
      {hash_of_text(signature_of(pages, ExpertNames::kLeftOut)),
       hash_of_text(signature_of(pages, ExpertNames::kIncluded)),
       static_cast<int64_t>(first_with_same_experts(meshes.module, pages))},
      at::kLong);
  const int64_t fields = self_tensor.numel();
  const at::Tensor all = at::empty({size() * fields}, at::kLong);
  control()
      .all_gather(all, self_tensor, "comparison of the module across the ranks")
      .wait();
  const auto* rows = all.const_data_ptr<int64_t>();
  for (int64_t r = 1; r < size(); ++r) {
    const int64_t* row = rows + r * fields;
    if (row[0] == rows[0] && row[1] == rows[row[2] * fields + 1]) {
      continue;
    }
    // All ranks have found the same one.
    const bool are_experts = row[0] == rows[0];
    const auto first = static_cast<size_t>(are_experts ? row[2] : 0);
    const auto other = static_cast<size_t>(r);
    const std::vector<std::string> accounts = runtime::gather_texts(
        control(),
        accounts_of(
            pages,
            are_experts ? ExpertNames::kIncluded : ExpertNames::kLeftOut),
        "parameters that differ");
    const int first_rank = meshes.module.ranks()[first];
    const int other_rank = meshes.module.ranks()[other];
    return formatted(
        "wrap: the module on rank {} differs from rank {}'s: {}. Build the same module on every rank, from the same files and with the same options for precision and groups.",
        other_rank,
        first_rank,
        first_difference(
            accounts[first], first_rank, accounts[other], other_rank));
  }
  return "";
}

std::string PageRanks::find_other_sources(const std::vector<PageSpec>& pages) {
  std::string problem;
  for (const PartRanks& ranks : parts_) { // a comparison each, on all ranks
    const std::string found = ranks.axis == kTensorAxis
                                  ? find_other_parts(ranks, pages)
                                  : find_other_stages(ranks, pages);
    problem = problem.empty() ? found : problem;
  }
  return problem;
}

std::string PageRanks::find_other_parts(
    const PartRanks& ranks,
    const std::vector<PageSpec>& pages) {
  const auto local = lazy_sources(pages);
  const std::string text = nlohmann::json(local).dump();
  if (!runtime::are_equal(
          *ranks.control,
          text,
          "comparison of the sources of lazy parameters",
          watch_failures())) {
    const std::vector<std::string> texts = runtime::gather_texts(
        *ranks.control,
        text,
        "sources of lazy parameters that differ",
        watch_failures());
    const std::vector<int> all = model_.slice({ranks.axis}).ranks();
    const std::map<std::string, std::string> first =
        nlohmann::json::parse(texts.front());
    for (size_t i = 1; i < texts.size(); ++i) {
      const std::map<std::string, std::string> other =
          nlohmann::json::parse(texts[i]);
      for (const auto& [name, source] : first) {
        const auto found = other.find(name);
        if (found != other.end() && found->second != source) {
          return formatted(
              "wrap: lazy parameter '{}' is filled from another source on tensor-parallel rank {} ({}) than on rank {} ({}), but each has a part of the same tensor. Load the same files, and call init_parameters() with the same seed, on every rank.",
              name,
              all[i],
              found->second.empty() ? "no files" : found->second,
              all[0],
              source.empty() ? "no files" : source);
        }
      }
    }
  }
  return "";
}

std::string PageRanks::find_other_stages(
    const PartRanks& ranks,
    const std::vector<PageSpec>& pages) {
  std::vector<StageFiles> stages;
  for (const std::string& text : runtime::gather_texts(
           *ranks.control,
           nlohmann::json(stage_files(pages)).dump(),
           "comparison of the sources of lazy parameters",
           watch_failures())) {
    stages.push_back(nlohmann::json::parse(text));
  }
  const std::vector<int> all = model_.slice({ranks.axis}).ranks();
  for (size_t i = 1; i < stages.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      std::string problem =
          difference_of_stages(stages[k], all[k], stages[i], all[i]);
      if (!problem.empty()) {
        return problem;
      }
    }
  }
  return "";
}

std::string PageRanks::describe(const RankIntent& intent) const {
  const auto group = [&] {
    return "group '" + names_.pages[static_cast<size_t>(intent.group)] + "'";
  };
  const auto name = [&] {
    return "parameter '" +
           names_.parameters[static_cast<size_t>(intent.parameter)] + "'";
  };
  switch (intent.kind) {
    case RankIntent::Kind::kUnshard:
      return "reads " + name() + " (" + group() + ")";
    case RankIntent::Kind::kReduce:
      return "reduces the gradients of " + group();
    case RankIntent::Kind::kBackwardEnd:
      return "has ended its backward";
    case RankIntent::Kind::kGatherScope:
      return "gathers " + group();
    case RankIntent::Kind::kForwardPhase:
      return static_cast<PlanPhase>(intent.group) == PlanPhase::kTrain
                 ? "begins the forward of a training step"
                 : "begins a forward without gradients";
    case RankIntent::Kind::kClip:
      return (intent.parameter == 0
                  ? "takes the norm of the gradients with p = "
                  : "clamps the gradients to ") +
             formatted("{}", std::bit_cast<double>(intent.group));
    case RankIntent::Kind::kReadGradient:
      return "reads the gradient of " + name();
    case RankIntent::Kind::kInspect:
      return "inspects the parameters";
    case RankIntent::Kind::kAddGradient:
      return "adds to the gradient of " + name();
    case RankIntent::Kind::kStep:
      return intent.group == -1
                 ? "applies the gradients"
                 : formatted(
                       "applies the gradients at the learning rate {}",
                       std::bit_cast<double>(intent.parameter));
    case RankIntent::Kind::kSum:
      return "adds up " + std::to_string(intent.group) + " numbers";
    case RankIntent::Kind::kFiles:
      return describe_use(static_cast<FileUse>(intent.group));
    case RankIntent::Kind::kCompareValues:
      return "compares what it writes to parameters outside of steps (gather(), for_each_parameter())";
    case RankIntent::Kind::kUnwrap:
      return "unwraps the module";
  }
  return "does something unknown";
}

void PageRanks::abandon(const std::string& reason) noexcept {
  agreement_.report(reason);
  for (const auto& [group, communicator] : communicators_) {
    communicator->abort();
  }
}

void PageRanks::run_or_abandon(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    abandon(runtime::text_of_exception(error));
    throw;
  }
}

ValueDifference PageRanks::find_difference(const ValueHashes& values) {
  const std::vector<std::string> texts = runtime::gather_texts(
      control(),
      values.to_text(),
      "comparison of values of parameters",
      watch_failures());
  const std::vector<int>& ranks = of_module().mesh().ranks();
  size_t other = 1;
  while (other + 1 < texts.size() && texts[other] == texts[0]) {
    ++other;
  }
  return difference_of(ranks[0], texts[0], ranks[other], texts[other]);
}

std::optional<ValueDifference> PageRanks::find_difference_of_experts(
    const ValueHashes& values) {
  const auto experts =
      std::find_if(meshes_.begin(), meshes_.end(), [](const auto& mesh) {
        return mesh->mesh().has(kPartAxis);
      });
  const int part =
      experts == meshes_.end() ? 0 : (*experts)->mesh().index(kPartAxis);
  const auto gathered = [&](const std::string& text) {
    std::map<std::string, std::vector<std::pair<int, std::string>>> by_part;
    const std::vector<std::string> texts = runtime::gather_texts(
        control(),
        formatted("{}\n{}", part, text),
        "comparison of values of experts",
        watch_failures());
    for (size_t i = 0; i < texts.size(); ++i) {
      const size_t end = texts[i].find('\n');
      by_part[texts[i].substr(0, end)].emplace_back(
          of_module().mesh().ranks()[i], texts[i].substr(end + 1));
    }
    return by_part;
  };
  const auto is_other = [](const auto& ranks) {
    return std::find_if(ranks.begin(), ranks.end(), [&](const auto& rank) {
      return rank.second != ranks.front().second;
    });
  };
  // Names and hashes of all experts only where they differ.
  for (const auto& [number, ranks] : gathered(std::to_string(values.hash()))) {
    if (is_other(ranks) == ranks.end()) {
      continue;
    }
    const auto texts = gathered(values.to_text()).at(number);
    const auto other = is_other(texts);
    return difference_of(
        texts.front().first, texts.front().second, other->first, other->second);
  }
  return std::nullopt;
}

void PageRanks::sum(const at::Tensor& values) {
  control().all_reduce_sum(values, "sum over the ranks").wait(watch_failures());
}

void PageRanks::max(const at::Tensor& values) {
  control()
      .all_reduce_max(values, "maximum over the ranks")
      .wait(watch_failures());
}

WaitCheck PageRanks::watch(const PartRanks& ranks, const std::string& doing) {
  return ranks.axis == kPipelineAxis ? stage_waits_.watch_stages(doing)
                                     : watch_failures();
}

void PageRanks::sum_over_model(const at::Tensor& values) {
  for (const PartRanks& ranks : parts_) {
    (values.is_cpu() ? *ranks.control : *ranks.on_device)
        .all_reduce_sum(values, "sum over the parts of a model")
        .wait(watch(ranks, "adds up numbers"));
  }
}

void PageRanks::max_over_parts(
    const at::Tensor& values,
    const std::string& doing) {
  for (const PartRanks& ranks : parts_) {
    (values.is_cpu() ? *ranks.control : *ranks.on_device)
        .all_reduce_max(values, "maximum over the parts of a model")
        .wait(watch(ranks, doing));
  }
}

Communicator* PageRanks::tensor_control() const {
  for (const PartRanks& ranks : parts_) {
    if (ranks.axis == kTensorAxis) {
      return ranks.control;
    }
  }
  return nullptr;
}

std::string PageRanks::first_over_parts(
    const std::string& text,
    Stages stages) {
  std::string first = text;
  for (const PartRanks& ranks : parts_) {
    if (ranks.axis == kPipelineAxis && stages == Stages::kOne) {
      continue;
    }
    const std::vector<std::string> texts = runtime::gather_texts(
        *ranks.control,
        first,
        "errors of the parts of a model",
        watch(ranks, "compares errors with the other parts"));
    const auto found =
        std::find_if(texts.begin(), texts.end(), [](const auto& one) {
          return !one.empty();
        });
    first = found == texts.end() ? "" : *found;
  }
  return first;
}

void PageRanks::check_same_over_parts(const std::string& text) {
  if (model_.size() == 1) {
    return;
  }
  // The largest of these numbers and the smallest are equal if all are.
  const auto number = static_cast<int64_t>(
      std::hash<std::string>{}(text)&std::numeric_limits<int64_t>::max());
  const at::Tensor bounds = at::tensor({number, -number}, at::kLong);
  max_over_parts(bounds, text);
  const auto* values = bounds.const_data_ptr<int64_t>();
  if (values[0] == -values[1]) {
    return;
  }
  std::string lines =
      formatted("\n  rank {}: {}", of_module().mesh().rank(), text);
  for (const PartRanks& ranks : parts_) {
    const std::vector<std::string> of_ranks = runtime::gather_texts(
        *ranks.control, lines, "settings of a step", watch_failures());
    lines.clear();
    for (const std::string& line : of_ranks) {
      lines += line;
    }
  }
  TESSERA_FAIL(
      "the ranks have other settings for this step:{}\nEvery rank must set the same learning rate and limits of clipping, also those of other pipeline stages and of other parts of the layers. A schedule that follows a loss needs it on all of them (Engine::sum_over_ranks()).",
      lines);
}

void PageRanks::check_same_seeds(const torch::nn::Module& module) {
  const auto seeds = lazy_seeds(module);
  std::string problem = find_other_seeds(
      control(), of_module().mesh().ranks(), seeds, watch_failures());
  for (const PartRanks& ranks : parts_) {
    // Layers that pipeline stages build from one seed would begin alike.
    if (ranks.axis == kTensorAxis) {
      const std::string found = find_other_seeds(
          *ranks.control,
          model_.slice({ranks.axis}).ranks(),
          seeds,
          watch_failures());
      problem = problem.empty() ? found : problem;
    }
  }
  problem = first_over_parts(problem);
  TESSERA_CHECK(problem.empty(), "{}", problem);
}

void PageRanks::sum_over_shards(
    const at::Tensor& values,
    const std::vector<PageRows>& pages) {
  for (const auto& mesh : meshes_) {
    std::vector<at::Tensor> local;
    int64_t row = 0;
    for (const PageRows& rows : pages) {
      if (&of_sums(*rows.page) == mesh.get()) {
        local.push_back(values.narrow(0, row, rows.rows));
      }
      row += rows.rows;
    }
    if (local.size() == pages.size()) {
      sum_over_shards(*mesh, values);
      return;
    }
    if (local.empty()) {
      continue;
    }
    const at::Tensor sums = at::cat(local);
    sum_over_shards(*mesh, sums);
    row = 0;
    for (const at::Tensor& one : local) {
      one.copy_(sums.narrow(0, row, one.size(0)));
      row += one.size(0);
    }
  }
}

void PageRanks::sum_over_shards(MeshRanks& ranks, const at::Tensor& values) {
  if (!values.is_cpu()) {
    ranks.shards()
        .all_reduce_sum(values, "sum over the shards")
        .wait(watch_failures());
    return;
  }
  const DeviceMesh& mesh = ranks.mesh();
  if (mesh.has(kPartAxis)) {
    // All ranks add up, each part of the experts in a place of its own.
    std::vector<int64_t> sizes = values.sizes().vec();
    sizes.insert(sizes.begin(), mesh.size(kPartAxis));
    const at::Tensor sums = at::zeros(sizes, values.options());
    const at::Tensor local = sums[mesh.index(kPartAxis)];
    local.copy_(values);
    sum(sums);
    values.copy_(local);
    return;
  }
  sum(values);
  if (const int replicas = mesh.size(kReplicateAxis); replicas > 1) {
    values.div_(replicas); // every replica has been added
  }
}

void broadcast_module(
    PageRanks& ranks,
    const torch::nn::Module& module,
    const std::vector<PageSpec>& pages) {
  const c10::NoGradGuard no_grad;
  broadcast_seeds(ranks, module);
  std::unordered_set<const c10::StorageImpl*> done;
  const auto send =
      [&](const at::Tensor& tensor, const std::string& name, MeshRanks* mesh) {
        const c10::Storage& storage = tensor.storage();
        if (storage.nbytes() == 0 || is_deferred(tensor) ||
            !done.insert(storage.unsafeGetStorageImpl()).second) {
          return;
        }
        const auto bytes = at::from_blob(
            storage.mutable_data(),
            {static_cast<int64_t>(storage.nbytes())},
            at::TensorOptions().dtype(at::kByte).device(tensor.device()));
        const std::string label = "broadcast of '" + name + "'";
        if (mesh == nullptr) {
          ranks.control().broadcast(bytes, 0, label).wait();
          return;
        }
        // First to the ranks of other replicas that correspond to the mesh's
        // first rank, then from each of them to its replica.
        if (mesh->shards().rank() == 0) {
          mesh->replicas().broadcast(bytes, 0, label).wait();
        }
        mesh->shards().broadcast(bytes, 0, label).wait();
      };
  for (const PageSpec& page : pages) {
    for (const PagedParameter& parameter : page.parameters) {
      send(parameter.record.tensor, parameter.record.name(), &ranks.of(page));
    }
  }
  for (const auto& item : module.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (buffer.defined() && buffer.has_storage()) {
      // It may be on the CPU although the parameters are not.
      send(buffer, item.key(), buffer.is_cpu() ? nullptr : &ranks.of_module());
    }
  }
}

} // namespace tessera::sharding
