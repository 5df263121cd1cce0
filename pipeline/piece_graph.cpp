// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/piece_graph.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// Nodes from which one of `targets` can be reached, themselves included.
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

/// Notes what arrives at a node.
struct ArrivalHook : torch::autograd::FunctionPreHook {
  explicit ArrivalHook(std::shared_ptr<variable_list> arrived)
      : arrived(std::move(arrived)) {}
  variable_list operator()(const variable_list& gradients) override {
    *arrived = gradients;
    return gradients;
  }
  std::shared_ptr<variable_list> arrived;
};

variable_list run(
    const edge_list& roots,
    const variable_list& gradients,
    bool keep_graph,
    const edge_list& targets = {}) {
  return torch::autograd::Engine::get_default_engine().execute(
      roots,
      gradients,
      keep_graph,
      /*create_graph=*/false,
      /*accumulate_grad=*/targets.empty(),
      targets);
}

} // namespace

struct PieceGraph::Halves {
  struct Crossing {
    std::shared_ptr<Node> node;
    std::shared_ptr<variable_list> arrived;
  };
  std::unordered_set<Node*> towards_inputs;
  /// Nodes on the way to an input beside which something else enters.
  std::vector<Crossing> crossings;
  variable_list output_gradients;
};

PieceGraph::PieceGraph(Tensors inputs, const Tensors& outputs)
    : inputs_(std::move(inputs)) {
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) {
      roots_.push_back(torch::autograd::impl::gradient_edge(output));
    }
  }
}

void PieceGraph::backward(const Tensors& gradients) {
  if (!roots_.empty()) {
    run(roots_, gradients, /*keep_graph=*/false);
  }
  roots_.clear();
  for (at::Tensor& input : inputs_) {
    if (input.requires_grad()) {
      input_gradients_.push_back(
          input.grad().defined() ? input.grad() : at::zeros_like(input));
      input.mutable_grad().reset();
    }
  }
  inputs_.clear();
}

void PieceGraph::backward_input(const Tensors& gradients) {
  halves_ = std::make_shared<Halves>();
  halves_->output_gradients = gradients;
  edge_list targets;
  std::unordered_set<Node*> target_nodes;
  Tensors wanted;
  for (const at::Tensor& input : inputs_) {
    if (input.requires_grad()) {
      wanted.push_back(input);
      targets.push_back(torch::autograd::impl::gradient_edge(input));
      target_nodes.insert(targets.back().function.get());
    }
  }
  inputs_.clear();
  if (targets.empty() || roots_.empty()) {
    for (const at::Tensor& input : wanted) {
      input_gradients_.push_back(at::zeros_like(input));
    }
    return;
  }
  halves_->towards_inputs = nodes_towards(roots_, target_nodes);
  std::unordered_set<Node*> seen;
  std::vector<std::shared_ptr<Node>> open;
  const auto visit = [&](const Edge& edge) {
    if (edge.is_valid() &&
        halves_->towards_inputs.count(edge.function.get()) > 0 &&
        seen.insert(edge.function.get()).second) {
      open.push_back(edge.function);
    }
  };
  for (const Edge& root : roots_) {
    visit(root);
  }
  while (!open.empty()) {
    const std::shared_ptr<Node> node = std::move(open.back());
    open.pop_back();
    bool crosses = false;
    for (const Edge& edge : node->next_edges()) {
      visit(edge);
      crosses |= edge.is_valid() &&
                 halves_->towards_inputs.count(edge.function.get()) == 0;
    }
    if (crosses) {
      auto arrived = std::make_shared<variable_list>();
      node->add_pre_hook(std::make_unique<ArrivalHook>(arrived));
      halves_->crossings.push_back({node, std::move(arrived)});
    }
  }
  input_gradients_ = run(roots_, gradients, /*keep_graph=*/true, targets);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!input_gradients_[i].defined()) {
      input_gradients_[i] = at::zeros_like(wanted[i]);
    }
  }
}

void PieceGraph::backward_weight() {
  TESSERA_CHECK(
      halves_ != nullptr,
      "PieceGraph: the second half of a backward was asked for before the "
      "first.");
  const auto towards_inputs = [&](const Edge& edge) {
    return edge.is_valid() &&
           halves_->towards_inputs.count(edge.function.get()) > 0;
  };
  edge_list roots;
  variable_list gradients;
  const auto start = [&](Edge edge, const at::Tensor& gradient) {
    roots.push_back(std::move(edge));
    gradients.push_back(gradient);
  };
  // Outputs that no input reaches have not been touched so far.
  for (size_t i = 0; i < roots_.size(); ++i) {
    if (!towards_inputs(roots_[i])) {
      start(roots_[i], halves_->output_gradients[i]);
    }
  }
  for (const Halves::Crossing& crossing : halves_->crossings) {
    // Cut off from the inputs' side, a node computes the rest.
    for (Edge& edge : crossing.node->next_edges()) {
      if (towards_inputs(edge)) {
        edge = Edge();
      }
    }
    for (size_t i = 0; i < crossing.arrived->size(); ++i) {
      if ((*crossing.arrived)[i].defined()) {
        start(
            {crossing.node, static_cast<uint32_t>(i)}, (*crossing.arrived)[i]);
      }
    }
  }
  if (!roots.empty()) {
    run(roots, gradients, /*keep_graph=*/false);
  }
  roots_.clear();
  halves_.reset();
}

PieceGraph::Tensors PieceGraph::take_input_gradients() {
  return std::exchange(input_gradients_, {});
}

} // namespace tessera
