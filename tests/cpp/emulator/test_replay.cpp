// Runs that repeat recorded ones (devices/emulator/replay/). Asserts, against a second array that
// executes every run at register level, that results, all memories, locks, registers and reports
// are the same, whatever the data and the stream between, tasks and BDs of memtiles among what it
// writes; that another state of the array, another configuration, other words that steer cores and
// other arguments that share memory lead to the register level, and so do words that kernels
// compute; that kernels that fail, Ctrl-C and deadlines end or pause a replay as they do a run.
#include <stdexcept>

#include "replay_fixture.h"

using namespace npu;
using namespace npu::test;

TEST_SUITE_BEGIN("columns");  // which ThreadSanitizer runs

TEST_CASE("replays leave what runs at register level leave, with other streams between") {
  Design replayed, plain;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared three(3, memory), two(2, memory);
  int replays = 0;
  for (uint32_t i = 0; i < 40; ++i) {
    Prepared& stream = i % 5 == 4 ? two : three;  // three leaves the memtile at its other place
    Data data(3, i), expected(3, i);
    replays += run(replayed, stream, data);
    run_plainly(plain, stream, expected.arguments());
    CHECK(data == expected);
    CHECK(data.out != Words(kWords));
    CHECK(data.out == data.east);
    CHECK(same_report(replayed.m.array.report(), plain.m.array.report()));
    if (i % 3 == 0) CHECK(state(replayed.m) == state(plain.m));
  }
  CHECK(state(replayed.m) == state(plain.m));
  CHECK(replays == 36);
  CHECK(memory->bytes() > 0);
}

TEST_CASE("replays of one stream in a row leave the same state, whatever changes it between") {
  Design replayed, plain;
  Prepared stream(3, std::make_shared<ReplayMemory>());
  const auto again = [&](uint32_t seed, bool replays) {
    Data data(3, seed), expected(3, seed);
    CHECK(run(replayed, stream, data) == replays);
    run_plainly(plain, stream, expected.arguments());
    CHECK(data == expected);
    CHECK(same_report(replayed.m.array.report(), plain.m.array.report()));
  };
  for (uint32_t i = 0; i < 5; ++i) again(i, i >= 2);
  const uint32_t bd = arch::tile_geometry(arch::TileKind::kMem).bd_base + 0x20 * 9;
  replayed.m.array.write_register(kMem.address(bd), 77);
  CHECK(replayed.m.array.read_register(kMem.address(bd)) == 77);
  again(5, true);
  CHECK(state(replayed.m) == state(plain.m));
  again(6, true);
  again(7, true);
  replayed.m.array.tile(kCore.col, kCore.row).bds[7].words[0] = 77;
  again(8, true);
  CHECK(state(replayed.m) == state(plain.m));
  again(9, true);
  CHECK(replayed.m.array.return_to_rest());
  again(10, true);
  CHECK(state(replayed.m) == state(plain.m));
  again(11, true);
  again(12, true);
  const uint32_t lock = arch::tile_geometry(arch::TileKind::kCore).lock_base + 0x10 * 9;
  replayed.m.array.write_register(kCore.address(lock), 1);  // left for the next run
  again(13, false);
  replayed.m.array.write_register(kCore.address(lock), 0);
  again(14, true);
  CHECK(state(replayed.m) == state(plain.m));
}

TEST_CASE("results are those of an array that has run nothing before") {
  for (const SteeredBy by : {SteeredBy::kStream, SteeredBy::kPrepared}) {
    Design design(by);
    Prepared stream(3, std::make_shared<ReplayMemory>());
    for (uint32_t i = 0; i < 6; ++i) {
      CAPTURE(i);
      Design fresh(by);
      Data data(3, i), expected(3, i);
      // Cores that begin with data would not begin so again: such arrays are not brought back.
      CHECK(run(design, stream, data) == (by == SteeredBy::kStream && i >= 2));
      fresh.m.array.begin(stream.parsed, expected.arguments());
      CHECK(fresh.m.array.resume(Array::Deadline::max()));
      CHECK(data == expected);
    }
  }
}

TEST_CASE("arguments may lie elsewhere, but not in each other") {
  Design design;
  Prepared stream(2, std::make_shared<ReplayMemory>());
  for (uint32_t i = 0; i < 6; ++i) {
    Data data(2, i);  // new memory every time
    CHECK(run(design, stream, data) == (i >= 2));
  }
  Data shared(2, 7), expected(2, 7);
  run(design, stream, expected);
  design.m.array.begin(stream.parsed,
                       std::vector{view(shared.in, false), view(shared.in), view(shared.east)},
                       &stream.recordings);
  CHECK(!design.m.array.replaying());
  CHECK(design.m.array.resume(Array::Deadline::max()));
  CHECK(shared.east == expected.east);
}

TEST_CASE("arguments that are only read may share memory, as those of the recorded run do") {
  Design design, plain;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared stream(2, memory, Design::of_two());
  const size_t size = kWords;
  // Where the two objects begin, in words of one memory; how often each has come before.
  const std::vector<std::pair<size_t, size_t>> places = {{0, size},     {0, 0},        {0, 40},
                                                         {40, 0},       {0, size - 1}, {size, 0},
                                                         {size + 9, 0}, {0, size},     {0, 0}};
  for (int round = 0; round < 3; ++round) {
    for (const auto& [one, other] : places) {
      CAPTURE(one);
      CAPTURE(other);
      Words objects = counting(3 * size, static_cast<uint32_t>(1000 * round + 7));
      Data data(1, 0), expected(1, 0);
      const auto arguments = [&](Data& of) {
        return std::vector{
            emulator::Argument{reinterpret_cast<std::byte*>(objects.data() + one), 4 * size, false},
            view(of.out), view(of.east),
            emulator::Argument{reinterpret_cast<std::byte*>(objects.data() + other), 4 * size,
                               false}};
      };
      design.m.array.begin(stream.parsed, arguments(data), &stream.recordings);
      CHECK((design.m.array.replaying() || round < 2));
      CHECK(design.m.array.resume(Array::Deadline::max()));
      run_plainly(plain, stream, arguments(expected));
      CHECK(data == expected);
    }
  }
}

TEST_CASE("streams that start the tasks of a memtile and write its BDs are replayed") {
  Design replayed(SteeredBy::kStream, true), plain(SteeredBy::kStream, true);
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared two(3, memory, Design::started(3, 2)), four(3, memory, Design::started(3, 4));
  int replays = 0;
  for (uint32_t i = 0; i < 24; ++i) {
    CAPTURE(i);
    Prepared& stream = i % 5 < 3 ? two : four;
    Data data(3, i), expected(3, i);
    replays += run(replayed, stream, data);
    run_plainly(plain, stream, expected.arguments());
    CHECK(data == expected);
    CHECK(same_report(replayed.m.array.report(), plain.m.array.report()));
    CHECK(state(replayed.m) == state(plain.m));
  }
  CHECK(replays == 20);
}

TEST_CASE("what a run leaves in a queue ends replays until it is gone") {
  Design design;
  Prepared stream(2, std::make_shared<ReplayMemory>());
  const auto replays = [&] {
    Data data(2, 1);
    return run(design, stream, data);
  };
  for (int i = 0; i < 4; ++i) CHECK(replays() == (i >= 2));
  Script waits;  // for words that nobody sends
  waits.bd(kMem, 25, linear(16, kOwnMem)).push(kMem, kS2MM, 1, 25);
  design.m.run(waits);
  for (int i = 0; i < 3; ++i) CHECK(!replays());
  Script ends;
  ends.control(kMem, kS2MM, 1, 2).control(kMem, kS2MM, 1, 0);  // a reset
  design.m.run(ends);
  CHECK(replays());
}

TEST_CASE("another state of the array, another program or size is no replay") {
  Design design;
  Prepared stream(2, std::make_shared<ReplayMemory>());
  const auto replays = [&](Data&& data) { return run(design, stream, data); };
  for (int i = 0; i < 3; ++i) replays(Data(2, 1));
  CHECK(replays(Data(2, 1)));
  CHECK(!replays(Data(3, 1)));  // a longer argument
  CHECK(replays(Data(2, 1)));
  design.m.array.write_register(kMem.address(kMem.model().lock_base + 0x10 * 9), 3);
  CHECK(!replays(Data(2, 1)));
  design.m.array.write_register(kMem.address(kMem.model().lock_base + 0x10 * 9), 0);
  CHECK(replays(Data(2, 1)));
  design.configure();
  CHECK(!replays(Data(2, 1)));
}

TEST_CASE("address patches may point elsewhere, other data of BDs make other runs") {
  Design replayed, plain;
  Script script = Design::stream(2);
  Prepared stream(2, std::make_shared<ReplayMemory>(), script),
      other(2, std::make_shared<ReplayMemory>(), script);
  const auto patch_of = [&](uint32_t argument) {
    for (const stream::Operation& o : stream.parsed.operations()) {
      if (o.opcode == stream::Opcode::kAddressPatch && o.argument == argument) {
        return size_t{o.byte_offset} / 4 + 10;
      }
    }
    return size_t{0};
  };
  int replays = 0;
  for (uint32_t i = 0; i < 24; ++i) {
    CAPTURE(i);
    const uint32_t result = 4 * (7 * i % 64), objects = 4 * (i / 8 * 3);
    for (Prepared* one : {&stream, &other}) {
      one->recordings.patch(
          one->parsed, std::vector<StreamPatch>{{patch_of(1), result}, {patch_of(0), objects}});
    }
    Data data(3, i), expected(3, i);
    data.out.resize(kWords + 64), expected.out.resize(kWords + 64);
    replays += run(replayed, stream, data);
    run_plainly(plain, other, expected.arguments());
    CHECK(data == expected);
    CHECK(std::count(data.out.begin(), data.out.end(), 0u) >= 64);
    if (i % 4 != 1) continue;  // looking at the state ends what is known of it
    CHECK(state(replayed.m) == state(plain.m));
  }
  CHECK(replays == 24 - 2 - 2);  // what is read may be aliased: its address is that of the record
  stream.recordings.patch(stream.parsed, std::vector<StreamPatch>{{patch_of(1), 4 * 65}});
  Data data(3, 1);
  data.out.resize(kWords + 64);
  check_error(ErrorKind::kOutOfRange, {"argument"}, [&] { run(replayed, stream, data); });
}

TEST_CASE("words of arguments that steer cores are compared before every replay") {
  for (const SteeredBy by : {SteeredBy::kData, SteeredBy::kTakenData}) {
    CAPTURE(static_cast<int>(by));
    Design replayed(by), plain(by);
    Prepared stream(2, std::make_shared<ReplayMemory>());
    for (uint32_t i = 0; i < 16; ++i) {
      CAPTURE(i);
      Data data = steering(2, 512 - i / 4 % 2 * 256, i),
           expected = steering(2, 512 - i / 4 % 2 * 256, i);
      // The other count is recorded when it first comes.
      CHECK(run(replayed, stream, data) == (i != 0 && i != 1 && i != 4));
      run_plainly(plain, stream, expected.arguments());
      CHECK(data == expected);
      CHECK(same_report(replayed.m.array.report(), plain.m.array.report()));
      CHECK(state(replayed.m) == state(plain.m));
    }
  }
}

TEST_CASE("words that steer cores into an error lead to that error") {
  for (const SteeredBy by : {SteeredBy::kData, SteeredBy::kTakenData}) {
    for (const bool waits : {true, false}) {
      Design design(by);
      Prepared stream(2, std::make_shared<ReplayMemory>());
      for (uint32_t i = 0; i < 4; ++i) {
        Data data = steering(2, 512, i);
        CHECK(run(design, stream, data) == (i >= 2));
      }
      Data wrong = steering(waits ? 3 : UINT32_MAX, 512, 1);
      if (waits) {
        check_error(ErrorKind::kDeadlock, {"core (0,2)"}, [&] { run(design, stream, wrong); });
      } else {
        check_error(ErrorKind::kKernel, {"loop bound of -1"}, [&] { run(design, stream, wrong); });
      }
    }
  }
}

TEST_CASE("words that earlier runs left in cores are compared before every replay") {
  Design design;
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared says(2, memory), relies(2, memory, false);
  Data data(2, 1);
  run(design, says, data);
  for (int i = 0; i < 4; ++i) CHECK(run(design, relies, data) == (i >= 2));
  design.m.array.write_register(kCore.address(kLoops), 3);
  check_error(ErrorKind::kDeadlock, {"core (0,2)"}, [&] { run(design, relies, data); });
}

TEST_CASE("cores that are steered by what a kernel computes are never recorded") {
  Design design(SteeredBy::kComputedData);
  const auto memory = std::make_shared<ReplayMemory>();
  Prepared stream(2, memory);
  for (uint32_t i = 0; i < 5; ++i) {
    Data data = steering(2, 512, i);
    CHECK(!run(design, stream, data));
  }
  CHECK(memory->bytes() == 0);
}

TEST_CASE("a kernel that fails, Ctrl-C and a deadline end or pause a replay") {
  Design design;
  Prepared stream(2, std::make_shared<ReplayMemory>());
  Data data(2, 3);
  const auto warm = [&] {
    for (int i = 0; i < 3; ++i) run(design, stream, data);
    const Words out = data.out;
    CHECK(run(design, stream, data));
    CHECK(data.out == out);
  };
  warm();
  fails = true;
  check_error(ErrorKind::kKernel, {"was told to fail"}, [&] { run(design, stream, data); });
  check_error(ErrorKind::kArgument, {"configure"}, [&] { run(design, stream, data); });

  design.configure();
  warm();
  design.m.array.set_interrupt([] { throw std::runtime_error("Ctrl-C"); });
  CHECK_THROWS_WITH(run(design, stream, data), "Ctrl-C");
  design.m.array.set_interrupt({});

  design.configure();
  warm();
  const Words out = data.out;
  std::fill(data.out.begin(), data.out.end(), 0u);
  design.m.array.begin(stream.parsed, data.arguments(), &stream.recordings);
  CHECK(design.m.array.replaying());
  CHECK(!design.m.array.resume(std::chrono::steady_clock::now()));
  CHECK(data.out == Words(kWords));
  CHECK(design.m.array.resume(Array::Deadline::max()));
  CHECK(data.out == out);
}

TEST_SUITE_END();
