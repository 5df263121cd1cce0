// SPDX-License-Identifier: Apache-2.0
// Steps of models whose experts are divided over ranks, with optimizers of
// one's own and with an engine, against one rank that has all of them.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/inspect_engine.h"
#include "tessera/engine/memory/memory_plan.h"
#include "tessera/engine/memory/tier_needs.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/expert_parallel/divided_experts.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/tensors/tensor_spec.h"
#include "tessera/zoo/adapters/lora.h"
#include "zoo/divided_models.h"
#include "zoo/expert_inputs.h"

#include <ATen/record_function.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
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
  const auto experts = sharding::parameters_of_divided_experts(module);
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
    const ModelInput& full,
    std::vector<double>* norms = nullptr) {
  const auto model = from_pretrained(changed.folder());
  torch::optim::AdamW adam(
      model->parameters(),
      torch::optim::AdamWOptions(kRate).weight_decay(0.01));
  for (int step = 0; step < kSteps; ++step) {
    adam.zero_grad();
    model->forward(full).loss.backward();
    if (norms != nullptr) {
      norms->push_back(
          torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm));
    }
    adam.step();
  }
  return model;
}

/// A model of two ranks, each with half of the experts, without an engine.
struct ExpertsOfTwoRanks {
  explicit ExpertsOfTwoRanks(World& world)
      : groups(
            world,
            ParallelMesh({.shard = 2, .expert = 2}, 2, 2),
            torch::Device(torch::kCPU)),
        model(from_pretrained(
            changed.folder(),
            {.context = LayerContext().over_experts(
                 {&groups[ParallelGroup::kExpert],
                  &groups[ParallelGroup::kGradients]})})) {}

  ChangedModel changed{"qwen3_moe", kBalanced};
  ParallelGroups groups;
  std::shared_ptr<Model> model;
};

/// While it lives, counts allocations of [numel]: whole pages of that size.
class AllocationCounter {
 public:
  explicit AllocationCounter(int64_t numel) {
    wanted = numel;
    found = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& call)
                -> std::unique_ptr<at::ObserverContext> {
              if (std::string_view(call.name()) == "aten::empty" &&
                  call.inputs()[0].isIntList() &&
                  call.inputs()[0].toIntVector() ==
                      std::vector<int64_t>{wanted}) {
                ++found;
              }
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~AllocationCounter() {
    at::removeCallback(handle_);
  }
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  int64_t count() const {
    return found;
  }

 private:
  static inline std::atomic<int64_t> wanted{0};
  static inline std::atomic<int64_t> found{0};
  at::CallbackHandle handle_;
};

/// Adam divides by the gradient's size: where that is rounding noise, so is the
/// step, of kRate at most. On average it is not.
void expect_trained(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_LE((found - expected).abs().mean().item<double>(), kRate / 100);
}

/// A rank's engine over a fresh copy of the model.
class TrainedExperts {
 public:
  TrainedExperts(
      World& world,
      const ParallelSizes& sizes,
      const std::filesystem::path& folder,
      EngineOptions options = engine_options(nullptr),
      const std::function<void(Model&)>& change = {})
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
    if (change) {
      change(*model_);
    }
    options.parallel = &groups_.mesh();
    engine_.emplace(world, model_, options);
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

  Engine& engine() {
    return *engine_;
  }
  const Engine& engine() const {
    return *engine_;
  }
  Model& model() {
    return *model_;
  }

  /// Of this rank's part of the batch.
  void backward(const ModelInput& full) {
    const ModelInput own = part_of(
        full,
        groups_.mesh().index(ParallelGroup::kBatches, rank_),
        groups_.mesh().size(ParallelGroup::kBatches));
    engine().backward(model_->forward(own).loss);
  }

  /// @param norms of one rank's steps.
  /// @param saved where the first step's checkpoint goes.
  void train(
      const ModelInput& full,
      const std::vector<double>& norms,
      int begin,
      const std::filesystem::path& saved = {}) {
    for (int step = begin; step < kSteps; ++step) {
      backward(full);
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
    engine().model_tensors().for_each(
        [&](const ModelTensor& tensor, const at::Tensor& value) {
          all[tensor.name()] = value.clone();
        });
    return all;
  }

 private:
  int rank_;
  ParallelGroups groups_;
  std::shared_ptr<Model> model_;
  std::optional<Engine> engine_;
};

/// The whole model after kSteps steps, on rank 0.
std::map<std::string, at::Tensor> values_after_training(
    World& world,
    const ParallelSizes& sizes,
    const ChangedModel& changed,
    const EngineOptions& options) {
  TrainedExperts trained(world, sizes, changed.folder(), options);
  const ModelInput full = labelled_input(kRows, kLength);
  for (int step = 0; step < kSteps; ++step) {
    trained.backward(full);
    EXPECT_TRUE(trained.engine().step());
  }
  return trained.values();
}

constexpr ParallelSizes kLayouts[] = {
    {.shard = 4, .expert = 2},
    {.shard = 4, .expert = 4},
    {.data = 2, .shard = 2, .expert = 2},
    {.shard = 2, .tensor = 2, .expert = 2},
    {.shard = 2, .tensor = 2}};

} // namespace

TEST(ExpertTraining, IsThatOfOneRank) {
  run_ranks(2, [](World& world) {
    ExpertsOfTwoRanks divided(world);
    auto& [changed, groups, model] = divided;
    const ModelInput full = labelled_input(kRows, kLength);
    const auto plain = trained_alone(changed, full);
    torch::optim::AdamW adam(
        model->parameters(),
        torch::optim::AdamWOptions(kRate).weight_decay(0.01));
    const ModelInput own = part_of(full, world.rank(), 2);
    for (int step = 0; step < kSteps; ++step) {
      adam.zero_grad();
      model->forward(own).loss.backward();
      average_gradients(
          *model,
          groups[ParallelGroup::kGradients],
          groups[ParallelGroup::kSameExperts]);
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
TEST(ExpertTraining, IsThatOfOneRankUnderAnEngine) {
  const TemporaryFolder saved;
  const auto folder_of = [&](const char* label, size_t layout) {
    return saved.path() / (label + std::to_string(layout));
  };
  run_ranks(4, [&](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput full = labelled_input(kRows, kLength);
    std::vector<double> norms;
    const auto plain = trained_alone(changed, full, &norms);
    const auto expected = plain->named_parameters();
    for (size_t i = 0; i < std::size(kLayouts); ++i) {
      SCOPED_TRACE(i);
      TrainedExperts trained(world, kLayouts[i], changed.folder());
      trained.train(full, norms, 0, folder_of("steps", i));
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
        resumed.train(full, norms, 1);
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

// For a file, no page of experts is gathered: those who hold an expert send it.
TEST(ExpertTraining, SendsEachElementOnceForAFile) {
  run_ranks(4, [](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    TrainedExperts trained(world, {.shard = 4, .expert = 2}, changed.folder());
    std::set<std::string> own;
    int64_t numel = 0;
    for (const auto& group : trained.engine().pager().pages()) {
      if (group->spec().of_experts) {
        EXPECT_EQ(group->spec().mesh.size(kShardAxis), 2);
        EXPECT_TRUE(numel == 0 || group->layout().padded_numel() == numel);
        numel = group->layout().padded_numel();
        for (const auto& parameter : group->parameters()) {
          own.insert(parameter.record.name());
        }
      }
    }
    EXPECT_GT(numel, 0);
    const AllocationCounter gathers(numel);
    trained.values();
    EXPECT_EQ(gathers.count(), 0);
    const ModelTensors all = trained.engine().model_tensors();
    size_t held = 0;
    for (const ModelTensor& tensor : all.tensors()) {
      SCOPED_TRACE(tensor.name());
      EXPECT_EQ(tensor.spec.pipeline_stage, 0);
      EXPECT_EQ(all.find(tensor.name()), &tensor);
      int64_t elements = 0;
      for (const RankSlice& part : tensor.parts) {
        elements += part.part.numel;
      }
      EXPECT_EQ(elements, tensor.spec.numel());
      if (tensor.name().find(".experts.") != std::string::npos) {
        EXPECT_TRUE(!all.holds(tensor) || own.count(tensor.name()) == 1);
        held += all.holds(tensor) ? 1 : 0;
      }
    }
    EXPECT_GT(held, 0);
  });
}

// A user's optimizer has state of no known meaning: neither other experts nor
// an older form of it can be read.
TEST(ExpertTraining, StateOfAUsersOptimizerIsForTheSameExperts) {
  const TemporaryFolder saved;
  const auto with_engine = [&](const ParallelSizes& sizes, const auto& use) {
    run_ranks(4, [&](World& world) {
      const ChangedModel changed("qwen3_moe", kBalanced);
      EngineOptions options = TrainedExperts::engine_options(nullptr);
      options.optimizer.weight_decay.reset();
      options.optimizer.rule = UserOptimizerOptions{[](auto groups) {
        return std::make_unique<torch::optim::Adam>(
            std::move(groups), torch::optim::AdamOptions(kRate));
      }};
      TrainedExperts trained(world, sizes, changed.folder(), options);
      use(trained);
    });
  };
  const ParallelSizes sizes{.shard = 4, .expert = 2};
  with_engine(sizes, [&](TrainedExperts& trained) {
    trained.backward(labelled_input(kRows, kLength));
    trained.engine().step();
    trained.engine().save(saved.path(), {}, 0);
  });
  const auto expect_refused = [&](TrainedExperts& trained) {
    expect_error(
        [&] { trained.engine().load(saved.path(), {}); },
        {"state of a user-defined optimizer", "experts", "save_weights"});
  };
  with_engine({.shard = 4, .expert = 4}, expect_refused);
  with_engine(sizes, [&](TrainedExperts& trained) {
    EXPECT_EQ(trained.engine().load(saved.path(), {}), 1);
  });
  // As when experts had an engine of their own.
  const auto manifest = engine::find_checkpoint(saved.path()) / "manifest.json";
  std::ifstream file(manifest);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::string older =
      std::regex_replace(text, std::regex("[.]experts-[0-9]+-of-[0-9]+"), "");
  EXPECT_NE(older, text);
  // Manifests had no checksum of their own.
  older =
      std::regex_replace(older, std::regex("\n \"checksum\": \"[^\"]*\","), "");
  older =
      std::regex_replace(older, std::regex("\"format\": 3"), "\"format\": 2");
  std::ofstream(manifest) << older;
  with_engine(sizes, expect_refused);
}

// From the files of the whole model, after wrap().
TEST(ExpertTraining, LoadsTheWeightsOfItsExperts) {
  run_ranks(4, [](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    const auto plain = from_pretrained(changed.folder());
    const auto expected = plain->named_parameters();
    for (const ParallelSizes& sizes : kLayouts) {
      TrainedExperts trained(
          world,
          sizes,
          changed.folder(),
          TrainedExperts::engine_options(nullptr),
          [](Model& model) {
            const c10::NoGradGuard no_grad;
            for (at::Tensor& parameter : model.parameters()) {
              parameter.zero_();
            }
          });
      const LoadWeightsReport report =
          load_pretrained(trained.engine(), trained.model(), changed.folder());
      EXPECT_TRUE(report.missing.empty());
      EXPECT_TRUE(report.unexpected.empty());
      const auto values = trained.values();
      EXPECT_EQ(values.size(), world.rank() == 0 ? expected.size() : 0);
      for (const auto& [name, value] : values) {
        EXPECT_TRUE(value.equal(expected[name])) << name;
      }
    }
  });
}

// One norm over the pages of both meshes, whatever p is.
TEST(ExpertTraining, NormsAreThoseOfTheWholeModel) {
  run_ranks(4, [](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput full = labelled_input(kRows, kLength);
    const auto plain = from_pretrained(changed.folder());
    plain->forward(full).loss.backward();
    for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
      SCOPED_TRACE(p);
      const double expected = torch::nn::utils::clip_grad_norm_(
          plain->parameters(), /*max_norm=*/1e9, p);
      TrainedExperts trained(
          world, {.data = 2, .shard = 2, .expert = 2}, changed.folder());
      trained.backward(full);
      EXPECT_NEAR(trained.engine().grad_norm(p), expected, 1e-4 * expected);
    }
  });
}

// Each rank has the rows of its experts, and all the same other ones.
TEST(ExpertTraining, StatisticsAreThoseOfOneRank) {
  run_ranks(4, [](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput full = labelled_input(kRows, kLength);
    const auto plain = from_pretrained(changed.folder());
    plain->forward(full).loss.backward();
    std::map<std::string, TensorSummary> expected;
    for (const TensorSummary& row : inspect_model(*plain)) {
      expected.emplace(row.name, row);
    }
    {
      // The ranks of a page are some of the job's: every second one.
      TrainedExperts halves(
          world, {.shard = 2, .tensor = 2, .expert = 2}, changed.folder());
      halves.backward(full);
      for (const TensorSummary& row : inspect_model(halves.engine())) {
        SCOPED_TRACE(row.name);
        const TensorSummary& want = expected.at(row.name);
        EXPECT_EQ(row.sizes, want.sizes);
        EXPECT_EQ(row.value.count, want.value.count);
        EXPECT_NEAR(row.value.norm(), want.value.norm(), 1e-9);
        const double norm = want.gradient->norm();
        EXPECT_NEAR(row.gradient->norm(), norm, 1e-4 * norm);
      }
    }
    TrainedExperts trained(world, {.shard = 4, .expert = 2}, changed.folder());
    trained.backward(full);
    const auto summary = inspect_model(trained.engine());
    EXPECT_EQ(summary.size(), trained.model().parameters().size());
    for (const TensorSummary& row : summary) {
      SCOPED_TRACE(row.name);
      const TensorSummary& want = expected.at(row.name);
      EXPECT_EQ(row.value.count, want.value.count);
      EXPECT_NEAR(row.value.norm(), want.value.norm(), 1e-9);
      // The averages of the ranks' gradients are rounded to float32.
      const double norm = want.gradient->norm();
      EXPECT_NEAR(row.gradient->norm(), norm, 1e-4 * norm);
    }
    // One rank's experts: the others have theirs in these places.
    const auto some = inspect_model(trained.engine(), ".*experts[.]0[.].*");
    EXPECT_GT(some.size(), 0U);
    EXPECT_LT(some.size(), summary.size());
    EXPECT_THROW(inspect_model(trained.engine(), "absent"), Error);
  });
}

// No rank applies a step in which an expert of one rank overflows.
TEST(ExpertTraining, AnOverflowInOneExpertSkipsTheStepOfAll) {
  run_ranks(2, [](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput full = labelled_input(kRows, kLength);
    EngineOptions options = TrainedExperts::engine_options(nullptr);
    options.precision.parameters = at::kHalf;
    options.loss_scale.fixed = 1024;
    TrainedExperts trained(
        world, {.shard = 2, .expert = 2}, changed.folder(), options);
    const auto before = trained.values();
    trained.backward(full);
    const auto experts =
        sharding::parameters_of_divided_experts(trained.model());
    for (const at::Tensor& parameter : trained.model().parameters()) {
      if (experts.contains(parameter.unsafeGetTensorImpl())) {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        trained.engine().reduce(
            parameter,
            torch::full(parameter.sizes(), world.rank() == 1 ? kInfinity : 0));
        break;
      }
    }
    EXPECT_FALSE(trained.engine().step());
    for (const auto& [name, value] : trained.values()) {
      EXPECT_TRUE(value.equal(before.at(name))) << name;
    }
    trained.backward(full);
    EXPECT_TRUE(trained.engine().step());
  });
}

// Each rank has the adapters of its experts; PEFT's folder has all of them.
TEST(ExpertTraining, AdaptersOfExpertsAreThoseOfOneRank) {
  const TemporaryFolder saved;
  run_ranks(4, [&](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ModelInput full = labelled_input(kRows, kLength);
    const auto adapt = [](Model& model) {
      LoraConfig config{.r = 2, .alpha = 4};
      config.target_modules.names = {"q_proj", "down_proj"};
      config.init = LoraInit::kRandom;
      apply_lora(model, config, /*seed=*/5);
    };
    const auto plain = from_pretrained(changed.folder());
    adapt(*plain);
    const auto start = from_pretrained(changed.folder());
    adapt(*start);
    std::vector<at::Tensor> adapters;
    for (const at::Tensor& parameter : plain->parameters()) {
      if (parameter.requires_grad()) {
        adapters.push_back(parameter);
      }
    }
    torch::optim::AdamW adam(
        adapters, torch::optim::AdamWOptions(kRate).weight_decay(0.01));
    TrainedExperts trained(
        world,
        {.data = 2, .shard = 2, .expert = 2},
        changed.folder(),
        TrainedExperts::engine_options(nullptr),
        adapt);
    for (int step = 0; step < kSteps; ++step) {
      adam.zero_grad();
      plain->forward(full).loss.backward();
      adam.step();
      trained.backward(full);
      EXPECT_TRUE(trained.engine().step());
    }
    save_lora(trained.engine(), trained.model(), saved.path());
    if (world.rank() != 0) {
      return;
    }
    const auto read = from_pretrained(changed.folder());
    load_lora(*read, saved.path());
    const auto expected = plain->named_parameters();
    const auto before = start->named_parameters();
    int of_experts = 0;
    for (const auto& item : read->named_parameters()) {
      SCOPED_TRACE(item.key());
      const at::Tensor& value = expected[item.key()];
      expect_trained(item.value().detach(), value.detach());
      if (value.requires_grad()) {
        EXPECT_FALSE(value.equal(before[item.key()]));
        of_experts += item.key().find("experts.") != std::string::npos ? 1 : 0;
      }
    }
    EXPECT_GT(of_experts, 0);
  });
}

// Their updates need sums over whole parameters: of the ranks that have the
// same expert.
TEST(ExpertTraining, OptimizersOfWholeParametersSeeOneExpert) {
  run_ranks(4, [](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    for (const UpdateRule& rule : std::vector<UpdateRule>{
             LambOptions(), AdafactorOptions(), MuonOptions()}) {
      SCOPED_TRACE(name_of(rule));
      EngineOptions options = TrainedExperts::engine_options(nullptr);
      options.optimizer.rule = rule;
      const auto expected =
          values_after_training(world, {.shard = 4}, changed, options);
      // In the second, neither layers nor experts are sharded.
      for (const ParallelSizes& sizes : std::vector<ParallelSizes>{
               {.shard = 4, .expert = 2},
               {.data = 4, .shard = 1, .expert = 4}}) {
        const auto found =
            values_after_training(world, sizes, changed, options);
        EXPECT_EQ(found.size(), expected.size());
        for (const auto& [name, value] : found) {
          SCOPED_TRACE(name);
          expect_trained(value, expected.at(name));
        }
      }
    }
  });
}

// Where shards rest changes no bit.
TEST(ExpertTraining, KeepsToAMemoryBudget) {
  run_ranks(4, [](World& world) {
    const ChangedModel changed("qwen3_moe", kBalanced);
    const ParallelSizes sizes{.shard = 4, .expert = 2};
    EngineOptions options = TrainedExperts::engine_options(nullptr);
    const auto expected = values_after_training(world, sizes, changed, options);
    {
      const TrainedExperts trained(world, sizes, changed.folder(), options);
      std::vector<sharding::PageSpec> pages;
      for (const auto& group : trained.engine().pager().pages()) {
        pages.push_back(group->spec());
      }
      // Room for the state of some pages.
      options.memory.device_bytes =
          engine::device_needs(pages, engine::pager_options(options)) + 4096;
      options.memory.host_bytes = 1 << 20;
    }
    {
      const TrainedExperts trained(world, sizes, changed.folder(), options);
      const auto planned = [&](MemoryTier tier) {
        const MemoryBytes& bytes = trained.engine().planned_memory(tier);
        return bytes[static_cast<size_t>(MemoryPurpose::kOptimizerState)];
      };
      EXPECT_GT(planned(MemoryTier::kHost), 0);
      EXPECT_EQ(
          trained.engine().measured_memory(
              MemoryTier::kHost)[static_cast<size_t>(
              MemoryPurpose::kOptimizerState)],
          planned(MemoryTier::kHost));
    }
    const auto found = values_after_training(world, sizes, changed, options);
    EXPECT_EQ(found.size(), expected.size());
    for (const auto& [name, value] : found) {
      EXPECT_TRUE(value.equal(expected.at(name))) << name;
    }
  });
}

TEST(ExpertTraining, NeedsToKnowWhichRanksHaveTheSameExperts) {
  run_ranks(2, [](World& world) {
    const ExpertsOfTwoRanks divided(world);
    expect_error(
        [&] {
          Engine(world, divided.model, TrainedExperts::engine_options(nullptr));
        },
        {"expert that other ranks do not have", "EngineOptions::parallel"});
  });
}

} // namespace tessera::zoo::expert_training_test
