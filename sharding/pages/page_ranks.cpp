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

#include <algorithm>
#include <bit>
#include <exception>
#include <functional>
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
        text << "deferred" << deferred->seeds.size()
             << deferred->files_identity;
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
        if (!deferred->files_identity.empty()) {
          text << " (the weights in their files: " << deferred->files_identity
               << ")";
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
  std::vector<std::shared_ptr<uint64_t>> seeds;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto* deferred =
        is_deferred(parameter)
            ? deferred_init(*parameter.storage().unsafeGetStorageImpl())
            : nullptr;
    for (size_t i = 0; deferred != nullptr && i < deferred->seeds.size(); ++i) {
      if (std::find(seeds.begin(), seeds.end(), deferred->seeds[i]) ==
          seeds.end()) {
        seeds.push_back(deferred->seeds[i]);
      }
    }
  }
  if (seeds.empty()) {
    return;
  }
  const at::Tensor values =
      at::empty({static_cast<int64_t>(seeds.size())}, at::kLong);
  for (size_t i = 0; i < seeds.size(); ++i) {
    values[static_cast<int64_t>(i)] = static_cast<int64_t>(*seeds[i]);
  }
  ranks.control()
      .broadcast(values, 0, "broadcast of the seeds of lazy parameters")
      .wait();
  for (size_t i = 0; i < seeds.size(); ++i) {
    *seeds[i] =
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
          [this](const RankIntent& intent) { return describe(intent); }) {
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
          {join(world, std::string(axis) + " control", at::kCPU, ranks),
           device.is_cpu() ? nullptr
                           : join(world, "parts of a model", device, ranks)});
    }
  }
  check_same(meshes, pages);
  check_same_files(pages);
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

void PageRanks::check_same(
    const PageMeshes& meshes,
    const std::vector<PageSpec>& pages) {
  if (size() == 1) {
    return;
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
    TESSERA_FAIL(
        "wrap: the module on rank {} differs from rank {}'s: {}. Build the same module on every rank, from the same files and with the same options for precision and groups.",
        other_rank,
        first_rank,
        first_difference(
            accounts[first], first_rank, accounts[other], other_rank));
  }
}

void PageRanks::check_same_files(const std::vector<PageSpec>& pages) {
  if (model_.size(kTensorAxis) == 1) {
    return;
  }
  std::string identities;
  for (const PageSpec& page : pages) {
    for (const PagedParameter& parameter : page.parameters) {
      const auto* deferred = deferred_init(
          *parameter.record.tensor.storage().unsafeGetStorageImpl());
      if (deferred != nullptr && !page.of_experts) {
        identities += deferred->files_identity + ";";
      }
    }
  }
  const int64_t hash = hash_of_text(identities);
  const at::Tensor ends = at::tensor({hash, ~hash}, at::kLong);
  parts_.front()
      .control
      ->all_reduce_max(ends, "comparison of the files of lazy parameters")
      .wait();
  const auto* most = ends.const_data_ptr<int64_t>();
  TESSERA_CHECK(
      most[0] == ~most[1],
      "wrap: the weights in the files of lazy parameters are not the same on all tensor-parallel ranks, each of which reads its part. Load the same files on every rank.");
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
  const std::vector<std::string> names =
      ValueHashes::from_text(texts[0]).other_than(
          ValueHashes::from_text(texts[other]));
  return {
      formatted("rank {} and rank {}", ranks[0], ranks[other]),
      formatted("'{}'", names.front()) +
          (names.size() > 1 ? formatted(" and {} more", names.size() - 1)
                            : "")};
}

void PageRanks::sum(const at::Tensor& values) {
  control().all_reduce_sum(values, "sum over the ranks").wait(watch_failures());
}

void PageRanks::max(const at::Tensor& values) {
  control()
      .all_reduce_max(values, "maximum over the ranks")
      .wait(watch_failures());
}

void PageRanks::sum_over_model(const at::Tensor& values) {
  for (const PartRanks& ranks : parts_) {
    (values.is_cpu() ? *ranks.control : *ranks.on_device)
        .all_reduce_sum(values, "sum over the parts of a model")
        .wait(watch_failures());
  }
}

void PageRanks::max_over_parts(const at::Tensor& values) {
  for (const PartRanks& ranks : parts_) {
    (values.is_cpu() ? *ranks.control : *ranks.on_device)
        .all_reduce_max(values, "maximum over the parts of a model")
        .wait(watch_failures());
  }
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
