// SPDX-License-Identifier: Apache-2.0
// Steps of models whose experts are divided over ranks, with optimizers of
// one's own and with engines, against one rank that has all of them.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/engine_ref.h"
#include "tessera/engine/expert_engines.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/parallel/divided_experts.h"
#include "zoo/divided_models.h"
#include "zoo/expert_inputs.h"

#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera::zoo::expert_training_test {
namespace {

using tests::run_ranks;

constexpr int kSteps = 3;
constexpr double kRate = 1e-3;

constexpr double kMaxNorm = 0.1;

/// Averages the gradients of all parameters, for training without an engine:
/// those of DividedExperts over `same_experts`, the others over `gradients`
/// ([Note: gradients of experts] says why that is right). A parameter without a
/// gradient counts as zero, and has one afterwards.
void average_gradients(
    const torch::nn::Module& module,
    Communicator& gradients,
    Communicator& same_experts) {
  const c10::NoGradGuard no_grad;
  std::set<const c10::TensorImpl*> experts;
  for (const auto& parameter :
       sharding::divided_experts_of(module)->parameters()) {
    experts.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    at::Tensor& gradient = parameter.mutable_grad();
    gradient =
        gradient.defined() ? gradient.contiguous() : at::zeros_like(parameter);
    Communicator& ranks = experts.contains(parameter.unsafeGetTensorImpl())
                              ? same_experts
                              : gradients;
    ranks
        .all_reduce_sum(
            gradient, "average of the gradient of '" + item.key() + "'")
        .wait();
    gradient.div_(ranks.size());
  }
}

/// One rank's steps of AdamW on all experts and the whole batch.
/// @param norms where it is not null, gradients are clipped, and their norms
///     are written here.
std::shared_ptr<Model> trained_alone(
    const ChangedModel& changed,
    const ModelInput& whole,
    std::vector<double>* norms = nullptr) {
  const auto model = from_pretrained(changed.folder());
  torch::optim::AdamW adam(
      model->parameters(),
      torch::optim::AdamWOptions(kRate).weight_decay(0.01));
  for (int step = 0; step < kSteps; ++step) {
    adam.zero_grad();
    model->forward(whole).loss.backward();
    if (norms != nullptr) {
      norms->push_back(
          torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm));
    }
    adam.step();
  }
  return model;
}

/// Adam divides by the gradient's size: where that is rounding noise, so is the
/// step, of kRate at most. On average it is not.
void expect_trained(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_LE((found - expected).abs().mean().item<double>(), kRate / 100);
}

/// A rank's engines, or engine, over a fresh copy of the model.
class TrainedExperts {
 public:
  TrainedExperts(
      World& world,
      const ParallelSizes& sizes,
      const std::filesystem::path& folder)
      : rank_(world.rank()),
        groups_(
            world,
            ParallelMesh(sizes, world.size(), world.size()),
            torch::Device(torch::kCPU)) {
    LayerContext layers =
        sizes.tensor > 1
            ? LayerContext(TensorParallel{&groups_[ParallelGroup::kTensor]})
            : LayerContext();
    layers = layers.over_experts(
        {&groups_[ParallelGroup::kExpert],
         &groups_[ParallelGroup::kGradients]});
    model_ = from_pretrained(folder, {.context = layers});
    engine_.emplace(world, model_, engine_options(&groups_.mesh()));
  }

  static EngineOptions engine_options(const ParallelMesh* mesh) {
    EngineOptions options;
    options.log_memory = false;
    options.sharding.groups.min_group_numel = 1000;
    options.optimizer.lr = kRate;
    options.optimizer.weight_decay = 0.01;
    options.parallel = mesh;
    return options;
  }

  EngineRef engine() {
    return *engine_;
  }
  Model& model() {
    return *model_;
  }

  /// @param norms of one rank's steps.
  /// @param saved where the first step's checkpoint goes.
  void train(
      const ModelInput& whole,
      const std::vector<double>& norms,
      int begin,
      const std::filesystem::path& saved = {}) {
    const ModelInput own = part_of(
        whole,
        groups_.mesh().index(ParallelGroup::kBatches, rank_),
        groups_.mesh().size(ParallelGroup::kBatches));
    for (int step = begin; step < kSteps; ++step) {
      engine().backward(model_->forward(own).loss);
      // Float32 sums in another order.
      const double norm = norms[static_cast<size_t>(step)];
      EXPECT_NEAR(engine().clip_grad_norm(kMaxNorm), norm, 1e-4 * norm);
      engine().step();
      if (step == 0 && !saved.empty()) {
        engine().save(saved, {}, 0);
      }
    }
  }

  /// Of the whole model, on rank 0.
  std::map<std::string, at::Tensor> values() {
    std::map<std::string, at::Tensor> all;
    for (WholeModel& part : engine().whole_models()) {
      part.for_each([&](const WholeTensor& tensor, const at::Tensor& value) {
        all[tensor.name()] = value.clone();
      });
    }
    return all;
  }

 private:
  int rank_;
  ParallelGroups groups_;
  std::shared_ptr<Model> model_;
  std::optional<OwnedEngine> engine_;
};

constexpr ParallelSizes kLayouts[] = {
    {.shard = 4, .expert = 2},
    {.shard = 4, .expert = 4},
    {.data = 2, .shard = 2, .expert = 2},
    {.shard = 2, .tensor = 2, .expert = 2},
    {.shard = 2, .tensor = 2}};

} // namespace

TEST(ExpertTraining, IsThatOfOneRank) {
  run_ranks(2, [](World& world) {
    ParallelGroups groups(
        world,
        ParallelMesh({.shard = 2, .expert = 2}, 2, 2),
        torch::Device(torch::kCPU));
    Communicator& gradients = groups[ParallelGroup::kGradients];
    Communicator& same = groups[ParallelGroup::kSameExperts];
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput whole = labelled_input(kRows, kLength);
    const auto plain = trained_alone(changed, whole);
    const auto model = from_pretrained(
        changed.folder(),
        {.context = LayerContext().over_experts(
             {&groups[ParallelGroup::kExpert], &gradients})});
    torch::optim::AdamW adam(
        model->parameters(),
        torch::optim::AdamWOptions(kRate).weight_decay(0.01));
    const ModelInput own = part_of(whole, world.rank(), 2);
    for (int step = 0; step < kSteps; ++step) {
      adam.zero_grad();
      model->forward(own).loss.backward();
      average_gradients(*model, gradients, same);
      adam.step();
    }
    const auto expected = plain->named_parameters();
    for (const auto& item : model->named_parameters()) {
      SCOPED_TRACE(item.key());
      expect_trained(item.value().detach(), expected[item.key()].detach());
    }
  });
}

// Everything divided: experts over the ranks that have the same ones, the rest
// over all; clipped by one norm, gone on with from every other layout's
// checkpoint, and written as one rank writes it.
TEST(ExpertTraining, IsThatOfOneRankUnderEngines) {
  const TemporaryFolder saved;
  const auto folder_of = [&](const char* what, size_t layout) {
    return saved.path() / (what + std::to_string(layout));
  };
  run_ranks(4, [&](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput whole = labelled_input(kRows, kLength);
    std::vector<double> norms;
    const auto plain = trained_alone(changed, whole, &norms);
    const auto expected = plain->named_parameters();
    for (size_t i = 0; i < std::size(kLayouts); ++i) {
      SCOPED_TRACE(i);
      TrainedExperts trained(world, kLayouts[i], changed.folder());
      trained.train(whole, norms, 0, folder_of("steps", i));
      const auto values = trained.values();
      if (world.rank() == 0) {
        EXPECT_EQ(values.size(), expected.size());
        for (const auto& [name, value] : values) {
          SCOPED_TRACE(name);
          expect_trained(value, expected[name].detach());
        }
      }
      const auto folder = folder_of("model", i);
      save_pretrained(trained.engine(), trained.model(), folder);
      if (world.rank() == 0) {
        const auto read = from_pretrained(folder);
        for (const auto& item : read->named_parameters()) {
          EXPECT_TRUE(item.value().equal(values.at(item.key()))) << item.key();
        }
      }
    }
    for (size_t from = 0; from < std::size(kLayouts); ++from) {
      for (size_t to = 0; to < std::size(kLayouts); ++to) {
        SCOPED_TRACE(std::to_string(from) + " as " + std::to_string(to));
        TrainedExperts resumed(world, kLayouts[to], changed.folder());
        EXPECT_EQ(resumed.engine().load(folder_of("steps", from), {}), 1);
        resumed.train(whole, norms, 1);
        const auto values = resumed.values();
        if (world.rank() == 0) {
          const auto same = from_pretrained(folder_of("model", from));
          for (const auto& item : same->named_parameters()) {
            SCOPED_TRACE(item.key());
            const at::Tensor& value = values.at(item.key());
            if (from == to) {
              EXPECT_TRUE(value.equal(item.value()));
            } else {
              expect_trained(value, item.value().detach());
            }
          }
        }
      }
    }
  });
}

TEST(ExpertTraining, AStepThatOneEngineRefusesChangesNothing) {
  run_ranks(2, [](World& world) {
    ParallelGroups groups(
        world,
        ParallelMesh({.shard = 2, .expert = 2}, 2, 2),
        torch::Device(torch::kCPU));
    const ChangedModel changed("qwen3_moe", kBalanced);
    const auto model = from_pretrained(
        changed.folder(),
        {.context = LayerContext().over_experts(
             {&groups[ParallelGroup::kExpert],
              &groups[ParallelGroup::kGradients]})});
    ExpertEngines engines(
        world, model, TrainedExperts::engine_options(&groups.mesh()));
    const auto values = [&] {
      std::map<std::string, at::Tensor> found;
      engines.for_each_parameter(
          [&](const std::string& name, const at::Tensor& value) {
            found[name] = value.clone();
          });
      return found;
    };
    const auto before = values();
    const ModelInput own =
        part_of(labelled_input(kRows, kLength), world.rank(), 2);
    engines.backward(model->forward(own).loss);
    engines.experts().zero_grad();
    expect_error(
        [&] { engines.step(); }, {"no parameter has a gradient", "backward"});
    for (const auto& [name, value] : values()) {
      EXPECT_TRUE(value.equal(before.at(name))) << name;
    }
    engines.zero_grad();
    engines.backward(model->forward(own).loss);
    EXPECT_TRUE(engines.step());
  });
}

TEST(ExpertTraining, SaysWhatEnginesRefuse) {
  run_ranks(2, [](World& world) {
    ParallelGroups groups(
        world,
        ParallelMesh({.shard = 2, .expert = 2}, 2, 2),
        torch::Device(torch::kCPU));
    const ChangedModel changed("qwen3_moe", kBalanced);
    const auto model = from_pretrained(
        changed.folder(),
        {.context = LayerContext().over_experts(
             {&groups[ParallelGroup::kExpert],
              &groups[ParallelGroup::kGradients]})});
    EngineOptions options = TrainedExperts::engine_options(nullptr);
    expect_error(
        [&] { Engine(world, model, options); },
        {"expert that other ranks do not have", "ExpertEngines"});
    expect_error(
        [&] { ExpertEngines(world, model, options); },
        {"EngineOptions::parallel"});
    options.parallel = &groups.mesh();
    options.memory.device_bytes = 1 << 30;
    expect_error(
        [&] { ExpertEngines(world, model, options); }, {"memory budget"});
  });
}

} // namespace tessera::zoo::expert_training_test
