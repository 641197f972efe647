// Weights that threads of a replay fetch while they wait (devices/emulator/replay/read_ahead.h).
// Asserts which bytes: those that the thread's lanes of the next phase with weights read first, in
// their order, up to a limit, and again from the phase behind that one when it has begun; never
// others than the calls' own; none where no phase is left that reads any. And that a run goes on
// when another number of threads is chosen meanwhile.
#include <doctest/doctest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "devices/emulator/array.h"
#include "devices/emulator/replay/joint_replay.h"
#include "devices/emulator/replay/read_ahead.h"
#include "host/thread_pool.h"

using namespace npu;
using namespace npu::emulator;

namespace {

constexpr size_t kBlock = 3000;        // bytes of weights of a call
constexpr uint64_t kMost = 512 << 10;  // of a thread

// A run whose lanes read weights from one argument, call after call.
struct Weights {
  // Lanes of a phase: calls that each has, of `times` blocks so many bytes apart.
  struct Shape {
    std::vector<int> calls;
    uint32_t times = 1;
    int64_t stride = kBlock;
    uint32_t rows = 1;
    int64_t row_stride = 0;
  };
  // parts: the first argument is such a part of the second.
  explicit Weights(const std::vector<Shape>& phases, size_t parts = 1) {
    auto made = std::make_shared<Recording>();
    std::vector<Phase> all;
    for (const Shape& shape : phases) all.push_back(phase(shape));
    made->phases = PackedPhases(std::move(all));
    data.resize(at);
    arguments = {{data.data(), data.size() / parts, false}};
    if (parts > 1) arguments.push_back({data.data(), data.size(), false});
    made->arguments = *argument_shapes(arguments);
    recording = std::move(made);
    run = std::make_unique<Replay>(recording, arguments, std::vector<int64_t>{});
  }
  Phase phase(const Shape& shape) {
    Phase lanes;
    for (const int count : shape.calls) {
      Lane lane;
      Action action{};
      action.kind = Action::Kind::kSteer;
      lane.actions.push_back(action);
      action.kind = Action::Kind::kCall;
      for (int i = 0; i < count; ++i) {
        CallAction call;
        call.function = &function;
        call.state = &core;
        call.operands = &operand;
        call.places = &nowhere;
        call.count = 1;
        call.shared = 1;
        const Place place{static_cast<int64_t>(at), 1};
        if (i % 2 == 0) {
          call.moves = 1;
          call.first_move = static_cast<uint32_t>(lane.moves.size());
          lane.moves.push_back({place, nullptr, 0});
        } else {  // where its list of operands says
          call.based = 1;
          call.places = &places.emplace_back(place);
        }
        call.times = shape.times;
        call.stride = shape.times > 1 ? shape.stride : 0;
        call.rows = shape.rows;
        call.row_stride = shape.row_stride;
        at += (shape.rows - 1) * static_cast<size_t>(shape.row_stride) +
              (shape.times - 1) * static_cast<size_t>(shape.stride) + kBlock;
        action.index = static_cast<uint32_t>(lane.calls.size());
        lane.actions.push_back(action);
        lane.calls.push_back(call);
      }
      lanes.push_back(std::move(lane));
    }
    return lanes;
  }
  // What a thread gets, as one range; it must be one.
  std::pair<size_t, size_t> fetched(ReadAhead& ahead, size_t thread) {
    size_t first = 0, end = 0;
    for (;;) {
      const std::span<const std::byte> next = ahead.next(thread);
      if (next.empty()) return {first, end};
      const auto offset = static_cast<size_t>(next.data() - data.data());
      if (first == end) first = end = offset;
      REQUIRE(offset == end);
      end += next.size();
      REQUIRE(end <= data.size());
    }
  }

  KernelArgument operand{nullptr, kBlock, 0, nullptr};
  Place nowhere;
  std::deque<Place> places;
  CoreState core;
  std::atomic<int> calls{0};
  CallAction::Function function = [this](std::span<const KernelArgument>, CoreState&) { ++calls; };
  std::shared_ptr<const Recording> recording;
  std::vector<std::byte> data;
  std::vector<Argument> arguments;
  std::unique_ptr<Replay> run;
  size_t at = 0;
};

using Range = std::pair<size_t, size_t>;

}  // namespace

TEST_CASE("read ahead: a thread's lanes of the next phase with weights") {
  Weights weights({{{0}, 1}, {{0, 0}, 1}, {{1, 2, 3, 4}, 2}, {{0}, 1}, {{2, 1}, 1}, {{0}, 1}});
  ReadAhead ahead(*weights.run, 2);
  CHECK(ahead.left());
  CHECK(weights.fetched(ahead, 0) == Range{0, 6 * kBlock});
  CHECK(weights.fetched(ahead, 1) == Range{6 * kBlock, 20 * kBlock});
  CHECK(!ahead.left());
  weights.run->step();
  CHECK(!ahead.left());  // it is the same phase
  CHECK(weights.fetched(ahead, 0) == Range{});
  weights.run->step();  // the phase itself: those behind it
  CHECK(ahead.left());
  CHECK(weights.fetched(ahead, 1) == Range{22 * kBlock, 23 * kBlock});
  CHECK(weights.fetched(ahead, 0) == Range{20 * kBlock, 22 * kBlock});
  weights.run->step();
  weights.run->step();
  CHECK(!ahead.left());
  CHECK(weights.fetched(ahead, 0) == Range{});  // there is none
  CHECK(weights.fetched(ahead, 1) == Range{});
  CHECK(!ReadAhead(*weights.run, 1).left());  // who waits for nobody
}

TEST_CASE("read ahead: all rows of a call if they follow each other, else the first") {
  Weights follow({{{0}}, {{1}, 3, kBlock, 4, 3 * kBlock}});
  ReadAhead ahead(*follow.run, 2);
  CHECK(follow.fetched(ahead, 1) == Range{0, 12 * kBlock});
  Weights apart({{{0}}, {{1}, 3, kBlock, 4, 5 * kBlock}});
  ReadAhead of_first(*apart.run, 2);
  CHECK(apart.fetched(of_first, 1) == Range{0, 3 * kBlock});
  Weights single({{{0}}, {{1}, 1, 0, 4, kBlock}});
  ReadAhead of_single(*single.run, 2);
  CHECK(single.fetched(of_single, 1) == Range{0, 4 * kBlock});
}

TEST_CASE("read ahead: up to a limit, and more threads than lanes") {
  Weights weights({{{0}, 1}, {{100, 2}, 3}});
  ReadAhead ahead(*weights.run, 3);
  CHECK(weights.fetched(ahead, 0) == Range{});  // two lanes are the other threads'
  const auto [first, end] = weights.fetched(ahead, 1);
  CHECK(first == 0);
  CHECK(end >= kMost);
  CHECK(end < kMost + kBlock);
  CHECK(weights.fetched(ahead, 2) == Range{300 * kBlock, 306 * kBlock});
  CHECK(!ahead.left());
}

TEST_CASE("read ahead: nothing behind an argument") {
  Weights apart({{{0}}, {{1}, 3, 2 * kBlock}});
  ReadAhead ahead(*apart.run, 2);
  CHECK(apart.fetched(ahead, 1) == Range{0, 5 * kBlock});

  Weights large({{{0}}, {{1, 1}}});
  large.operand.bytes = 3 * kBlock;  // of a list that other calls share
  ReadAhead of_large(*large.run, 2);
  CHECK(large.fetched(of_large, 0) == Range{0, 2 * kBlock});
  CHECK(large.fetched(of_large, 1) == Range{kBlock, 2 * kBlock});

  Weights within({{{0}}, {{4, 4}}}, 4);  // which shares memory with a larger one
  ReadAhead of_within(*within.run, 2);
  CHECK(within.fetched(of_within, 0) == Range{0, 4 * kBlock});
  CHECK(within.fetched(of_within, 1) == Range{4 * kBlock, 8 * kBlock});
}

TEST_CASE("read ahead: the number of threads may change during a run") {
  std::vector<Weights::Shape> shapes;
  for (int i = 0; i < 40; ++i) shapes.push_back({i % 2 ? std::vector{3, 3, 3, 3} : std::vector{1}});
  Weights weights(shapes);
  JointReplay replay(std::move(*weights.run));
  int pauses = 0;
  CHECK(replay.resume([&] {
    ThreadPool::set_shared_threads(1 + pauses++ % 6);
    return false;
  }));
  ThreadPool::set_shared_threads(0);
  CHECK(pauses == 40);
  CHECK(weights.calls == 20 * 12 + 20);
}
