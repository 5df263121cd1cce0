// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/model_chunk_graph.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera::pipeline {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// Nodes from which one of `targets` can be reached, targets included.
std::unordered_set<Node*> nodes_towards(
    const edge_list& roots,
    const std::unordered_set<Node*>& targets) {
  std::unordered_map<Node*, bool> reaches;
  // Children first, without recursion: graphs are deep.
  std::vector<std::pair<Node*, size_t>> path;
  const auto visit = [&](Node* node) {
    if (node != nullptr && reaches.emplace(node, false).second) {
      reaches[node] = targets.count(node) > 0;
      path.emplace_back(node, 0);
    }
  };
  for (const Edge& root : roots) {
    visit(root.function.get());
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next < node->num_outputs()) {
        visit(node->next_edge(next++).function.get());
        continue;
      }
      for (const Edge& edge : node->next_edges()) {
        reaches[node] |= edge.is_valid() && reaches[edge.function.get()];
      }
      path.pop_back();
    }
  }
  std::unordered_set<Node*> found;
  for (const auto& [node, does] : reaches) {
    if (does) {
      found.insert(node);
    }
  }
  return found;
}

/// Records the gradients that arrive at a node.
struct ArrivalHook : torch::autograd::FunctionPreHook {
  explicit ArrivalHook(std::shared_ptr<variable_list> arrived)
      : arrived(std::move(arrived)) {}
  variable_list operator()(const variable_list& gradients) override {
    *arrived = gradients;
    return gradients;
  }
  std::shared_ptr<variable_list> arrived;
};

/// Backward from `roots` through everything that they reach.
void run(
    const edge_list& roots,
    const variable_list& gradients,
    bool keep_graph) {
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(
        roots,
        gradients,
        keep_graph,
        /*create_graph=*/false,
        /*accumulate_grad=*/true);
  }
}

} // namespace

struct ModelChunkGraph::Halves {
  /// A node on the way to an input with edges that lead elsewhere too.
  struct Crossing {
    std::shared_ptr<Node> node;
    edge_list edges; ///< all of them
    std::shared_ptr<variable_list> arrived;
  };
  std::unordered_set<Node*> towards_inputs;
  std::vector<Crossing> crossings;
  /// Outputs that depend on no input.
  edge_list other_roots;
  variable_list other_gradients;

  bool leads_to_input(const Edge& edge) const {
    return edge.is_valid() && towards_inputs.count(edge.function.get()) > 0;
  }

  /// All nodes on the way to an input.
  std::vector<std::shared_ptr<Node>> nodes(const edge_list& roots) const {
    std::unordered_set<Node*> seen;
    std::vector<std::shared_ptr<Node>> found;
    const auto visit = [&](const Edge& edge) {
      if (leads_to_input(edge) && seen.insert(edge.function.get()).second) {
        found.push_back(edge.function);
      }
    };
    for (const Edge& root : roots) {
      visit(root);
    }
    for (size_t i = 0; i < found.size(); ++i) {
      const std::shared_ptr<Node> node = found[i];
      for (const Edge& edge : node->next_edges()) {
        visit(edge);
      }
    }
    return found;
  }

  /// Cuts a node off from everything but the inputs, if it is an operator that
  /// then computes less.
  void cut(const std::shared_ptr<Node>& node) {
    Crossing crossing{node, node->next_edges(), nullptr};
    bool crosses = false;
    for (Edge& edge : node->next_edges()) {
      if (edge.is_valid() && !leads_to_input(edge) && node->is_traceable()) {
        edge = Edge();
        crosses = true;
      }
    }
    if (crosses) {
      crossing.arrived = std::make_shared<variable_list>();
      node->add_pre_hook(std::make_unique<ArrivalHook>(crossing.arrived));
      crossings.push_back(std::move(crossing));
    }
  }
};

ModelChunkGraph::ModelChunkGraph(Tensors inputs, const Tensors& outputs)
    : inputs_(std::move(inputs)) {
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      roots_.push_back(torch::autograd::impl::gradient_edge(output));
    }
  }
}

void ModelChunkGraph::collect_input_gradients() {
  for (at::Tensor& input : inputs_) {
    if (input.defined() && input.requires_grad()) {
      input_gradients_.push_back(
          input.grad().defined() ? input.grad() : at::zeros_like(input));
      input.mutable_grad().reset();
    }
  }
  inputs_.clear();
}

void ModelChunkGraph::backward(const Tensors& gradients) {
  run(roots_, gradients, /*keep_graph=*/false);
  roots_.clear();
  collect_input_gradients();
}

void ModelChunkGraph::backward_input(const Tensors& gradients) {
  halves_ = std::make_shared<Halves>();
  std::unordered_set<Node*> targets;
  for (const at::Tensor& input : inputs_) {
    if (input.defined() && input.requires_grad()) {
      targets.insert(
          torch::autograd::impl::gradient_edge(input).function.get());
    }
  }
  halves_->towards_inputs = nodes_towards(roots_, targets);
  edge_list roots;
  variable_list root_gradients;
  for (size_t i = 0; i < roots_.size(); ++i) {
    const bool now = halves_->leads_to_input(roots_[i]);
    (now ? roots : halves_->other_roots).push_back(roots_[i]);
    (now ? root_gradients : halves_->other_gradients).push_back(gradients[i]);
  }
  roots_.clear();
  for (const auto& node : halves_->nodes(roots)) {
    halves_->cut(node);
  }
  run(roots, root_gradients, /*keep_graph=*/true);
  collect_input_gradients();
}

void ModelChunkGraph::backward_weight() {
  TESSERA_CHECK(
      halves_ != nullptr,
      "ModelChunkGraph: the second half of a backward was requested before the first.");
  edge_list roots = std::move(halves_->other_roots);
  variable_list gradients = std::move(halves_->other_gradients);
  for (Halves::Crossing& crossing : halves_->crossings) {
    for (Edge& edge : crossing.edges) {
      if (halves_->leads_to_input(edge)) {
        edge = Edge();
      }
    }
    crossing.node->next_edges() = std::move(crossing.edges);
    for (size_t i = 0; i < crossing.arrived->size(); ++i) {
      if ((*crossing.arrived)[i].defined()) {
        roots.emplace_back(crossing.node, static_cast<uint32_t>(i));
        gradients.push_back((*crossing.arrived)[i]);
      }
    }
  }
  run(roots, gradients, /*keep_graph=*/false);
  halves_.reset();
}

ModelChunkGraph::Tensors ModelChunkGraph::take_input_gradients() {
  return std::exchange(input_gradients_, {});
}

} // namespace tessera::pipeline
