"""The detectors' sentences and their Chinese, as data: holes in braces stand for names and figures.

Written like a catalogue of messages: the English is the key. A hole of the same name takes the same text; `WORDS` are
texts of holes that have Chinese of their own. `chinese.in_chinese` reads this.
"""
# ruff: noqa: E501 - sentences as detectors write them

from __future__ import annotations

from collections.abc import Mapping

_LONGER = "；作业去掉它后每步可缩短 {gain} %。"
_TRANSFER = "：{n} 个 rank 传输变慢；去掉它后每步可缩短 {gain} %。"
_TRANSFER_EN = ": {n} ranks move data longer; the step would be {gain} % shorter without it."

#: English to Chinese. Of two that fit, the first counts.
SENTENCES: Mapping[str, str] = {
    # Slow targets
    "{who} and all other ranks of its replica {what}, in every stage: longer data, not hardware.":
        "{who} 及其副本的其他 rank 在每个流水级都{what}：数据更长，不是硬件问题。",
    "{who} {what}, but equal work is not slower there: a busy expert, not hardware.":
        "{who} {what}，但同样的工作在那里并不慢：专家负载高，不是硬件问题。",
    "{who} {what}; the job would gain {gain} % of its step without it. Roles are unknown, so this rests on its own"
    " history.": "{who} {what}" + _LONGER + "角色未知，因此只与其自身历史比较。",
    "{who} {what}; the job would gain {gain} % of its step without it.": "{who} {what}" + _LONGER,
    "{who} slowed stage {stage} by {n} %: the clocks of its devices fell with it.":
        "{who} 使流水级 {stage} 变慢 {n} %：其设备的时钟频率同时下降。",
    "Stage {stage} takes {n} % longer than before, all its ranks alike, at unchanged clocks: more work, not hardware.":
        "流水级 {stage} 比之前慢 {n} %，其所有 rank 一致，时钟频率未变：工作量增加，不是硬件问题。",
    "Stage {stage} of {job} computes {n} % longer than the median stage, all its ranks alike: its share of the model,"
    " not hardware.": "{job} 的流水级 {stage} 计算时间比中位流水级长 {n} %，其所有 rank 一致：模型切分所致，不是硬件问题。",
    "Ranks of {job} with one role differ by {n} % from step to step and the slowest one keeps changing: unequal data,"
    " not hardware.": "{job} 同角色 rank 逐步相差 {n} %，最慢者不断变化：数据不均，不是硬件问题。",
    "Every rank of {job} computes longer alike: steps take {n} % more; the load changed, not hardware.":
        "{job} 的所有 rank 计算同样变慢：步时增加 {n} %；负载变化，不是硬件问题。",
    "Steps of {job} take {n} % longer since step {step}; {node} carries the change.":
        "自第 {step} 步起，{job} 的步时增加 {n} %；变化来自 {node}。",
    "Steps of {job} take {n} % longer since step {step}; no single node computes longer: all wait longer for {cause}.":
        "自第 {step} 步起，{job} 的步时增加 {n} %；没有单个节点计算变慢：都在更久地等待{cause}。",
    "Steps of {job} take {n} % longer since step {step}; no single node computes longer.":
        "自第 {step} 步起，{job} 的步时增加 {n} %；没有单个节点计算变慢。",
    "Step time is back at its level before": "步时已回到之前的水平",
    "{job} takes {n} % longer per {unit} than its best earlier run ({run}); on as many ranks, so look at what changed"
    " since.": "{job} 每{unit}比历史最佳运行（{run}）慢 {n} %；rank 数相同，请查看此后的变更。",
    "{job} takes {n} % longer per {unit} than its best earlier run; on as many ranks, so look at what changed since.":
        "{job} 每{unit}比历史最佳运行慢 {n} %；rank 数相同，请查看此后的变更。",
    "{job} takes {n} % longer per {unit} than expected; the expectation or the configuration is not what runs.":
        "{job} 每{unit}比预期慢 {n} %；预期或配置与实际运行不符。",
    "{job} is as fast as its best earlier run again": "{job} 已恢复到历史最佳速度",
    "Insufficient coverage of {job}: {reasons}.": "对 {job} 的观测不足：{reasons}。",
    # Links and ports
    "The network adapter or link of {node} is slow" + _TRANSFER_EN: "{node} 的网卡或链路变慢" + _TRANSFER,
    "One of the network adapters or links of {names}, which share groups, is slow" + _TRANSFER_EN:
        "{names} 同属若干通信组，其中一台的网卡或链路变慢" + _TRANSFER,
    "The link between {a} and {b} is slow" + _TRANSFER_EN: "{a} 与 {b} 之间的链路变慢" + _TRANSFER,
    "Leaf switch {name} is congested or slow" + _TRANSFER_EN: "叶交换机 {name} 拥塞或变慢" + _TRANSFER,
    "Transfers became slower, the place cannot be told from step times alone" + _TRANSFER_EN:
        "传输变慢，仅凭步时无法定位" + _TRANSFER,
    "The network adapter or link of {node} is slow: transfers grew as its ports complained.":
        "{node} 的网卡或链路变慢：传输变慢的同时其端口报错。",
    "The link between {a} and {b} is slow: transfers grew as its ports complained.":
        "{a} 与 {b} 之间的链路变慢：传输变慢的同时其端口报错。",
    "Leaf switch {name} is slow: transfers grew as its ports complained.":
        "叶交换机 {name} 变慢：传输变慢的同时其端口报错。",
    "{port} has {n} transport or link errors a minute, far above its peers at equal traffic.":
        "{port} 每分钟有 {n} 次传输或链路错误，远高于同等流量的其他端口。",
    "{port} is congested: {n} congestion marks or pauses a minute, its peers {peers}.":
        "{port} 拥塞：每分钟 {n} 次拥塞标记或暂停，其他端口为 {peers} 次。",
    "Leaf switch {name} is congested: ports of {n} of its nodes count far more marks or pauses than ports of like traffic"
    " elsewhere.": "叶交换机 {name} 拥塞：其 {n} 台节点的端口的拥塞标记或暂停远高于其他同等流量的端口。",
    "{port} went down {n} times within {minutes} min.": "{port} 在 {minutes} 分钟内断开 {n} 次。",
    "{port} was up and is down.": "{port} 此前正常，现已断开。",
    "{port} runs at {now} Gbit/s, before at {before}.": "{port} 现以 {now} Gbit/s 运行，此前为 {before} Gbit/s。",
    # Heat, clocks, power
    "{who} is {n} K hotter than its power, place and peers explain: {cause}.":
        "{who} 比其功率、位置和同类所能解释的温度高 {n} K：{cause}。",
    "{who} has {n} K left before it lowers its clocks.": "{who} 距离降频只剩 {n} K。",
    "Cooling zone {name} warms: its {nodes} nodes are {n} K hotter than their power and peers explain.":
        "冷却区 {name} 升温：其 {nodes} 台节点比功率和同类所能解释的温度高 {n} K。",
    "Rack {name} warms: its {nodes} nodes are {n} K hotter than their power and peers explain.":
        "机柜 {name} 升温：其 {nodes} 台节点比功率和同类所能解释的温度高 {n} K。",
    "The whole hall warms: the median device is {n} K hotter at equal power.":
        "整个机房升温：相同功率下，设备温度中位数高出 {n} K。",
    "{who} holds its clocks down because it is hot.": "{who} 因过热而降频。",
    "{who} is slowed down by its board or supply (hardware slowdown or power brake).":
        "{who} 被板卡或供电限速（硬件降速或功率制动）。",
    "{who} has a lower power limit than its peers.": "{who} 的功率上限低于同类。",
    "{who} runs at lower clocks than its peers under the same load, and not because it is hot.":
        "{who} 在相同负载下时钟频率低于同类，且不是因为过热。",
    "{who} has a lower core voltage than its peers at equal clocks.": "{who} 在相同频率下核心电压低于同类。",
    # Memory, device errors, sensors
    "{who} could not remap a broken memory row: replace it.": "{who} 无法重映射损坏的显存行：请更换。",
    "{who} waits for a reset to remap a memory row: drain the node and reset the device.":
        "{who} 等待复位以重映射显存行：请隔离节点并复位设备。",
    "{who} had {n} uncorrectable memory error.": "{who} 出现 {n} 次不可纠正的显存错误。",
    "{who} had {n} uncorrectable memory errors.": "{who} 出现 {n} 次不可纠正的显存错误。",
    "{who} corrected {n} memory errors in {minutes} min, its peers {peers}: a ramp that often precedes an"
    " uncorrectable error.":
        "{who} 在 {minutes} 分钟内纠正了 {n} 次显存错误，同类为 {peers} 次：这种增长常先于不可纠正的错误。",
    "{who}: {column} reads {value}, which cannot be.": "{who}：{column} 读数为 {value}，不可能。",
    "{who}: {column} is no longer reported, its peers' is.": "{who}：{column} 不再上报，而同类仍上报。",
    "{who}: {column} has not moved for {minutes} min while its peers moved {n} times.":
        "{who}：{column} 已 {minutes} 分钟没有变化，而同类变化了 {n} 次。",
    "{who}: {column} jumps {n} from sample to sample, its peers {peers}.":
        "{who}：{column} 逐次跳变 {n}，同类为 {peers}。",
    "{who}: counters started again (driver reload or reset): differences across it are unknown.":
        "{who}：计数器重新开始（驱动重载或复位）：此间的增量未知。",
    "{who} behaves unlike before and unlike its peers: {names}.": "{who} 的表现与以往和同类都不同：{names}。",
    "{who} shows readings that healthy devices do not have together: {names}.":
        "{who} 出现健康设备不会同时出现的读数：{names}。",
    "{who} shows several weak signs that precede silent data corruption: {names}.":
        "{who} 出现若干静默数据错误的微弱征兆：{names}。",
    "{who}: {column} is saturated, not quiet; it stands at {value}, the most that {width} hold: what it counts may go on,"
    " its growth is unknown until it is reset.":
        "{who}：{column} 已饱和，并非平静；停在 {width} 的最大值 {value}：所计之事可能仍在发生，复位前增量未知。",
    "{column} is saturated, not quiet, on {n} of {all} targets; what it counts may go on, its growth there is unknown"
    " until it is reset.": "{column} 在 {all} 个目标中的 {n} 个上已饱和，并非平静；所计之事可能仍在发生，复位前增量未知。",
    # Hosts and storage
    "{node} has sent nothing for {n} s while other nodes go on.": "{node} 已 {n} 秒没有发送数据，而其他节点正常。",
    "{node} reports again.": "{node} 恢复上报。",
    "The clock of {node} is off by {n} s.": "{node} 的时钟偏差 {n} 秒。",
    "{node} has {name} = {value}; {n} of {all} nodes have {usual}.":
        "{node} 的 {name} = {value}；{all} 台节点中有 {n} 台为 {usual}。",
    "Storage {name} answers in {n} ms ({column}), {times} times as long as before, on most nodes at no more load.":
        "存储 {name} 响应时间为 {n} ms（{column}），是之前的 {times} 倍，多数节点如此，而负载没有增加。",
    "The storage path of {who} takes {n} ms ({column}), {times} times as long as before; other nodes do not.":
        "{who} 的存储路径耗时 {n} ms（{column}），是之前的 {times} 倍；其他节点没有。",
    # Numbers of the training
    "Loss of {job} is {value} at step {step}, {times} times its recent level {level}.":
        "{job} 的 loss 在第 {step} 步为 {value}，是近期水平 {level} 的 {times} 倍。",
    "Loss of {job} is {value} at step {step}, not finite.": "{job} 的 loss 在第 {step} 步为 {value}，不是有限值。",
    "Gradient norm of {job} is {value} at step {step}, {times} times its recent level {level}.":
        "{job} 的梯度范数在第 {step} 步为 {value}，是近期水平 {level} 的 {times} 倍。",
    "Gradient norm of {job} is {value} at step {step}, not finite.":
        "{job} 的梯度范数在第 {step} 步为 {value}，不是有限值。",
    "Loss of {job} is back at its level": "{job} 的 loss 已回到正常水平",
    "Gradient norm of {job} is back at its level": "{job} 的梯度范数已回到正常水平",
    "Rank {rank} ({node}) has a gradient norm unlike its peers' since step {step}: data, or a silent error of its"
    " device.": "rank {rank}（{node}）自第 {step} 步起梯度范数与同类不同：数据所致，或其设备的静默错误。",
    "Non-finite values began on rank {rank} ({node}){where} at step {step}, on no other rank: a hardware suspect.":
        "NaN/Inf 自第 {step} 步在 rank {rank}（{node}）{where}出现，其他 rank 没有：怀疑硬件。",
    "Non-finite values on {n} ranks at step {step}{where}: after the reduction, or overflow; no rank can be named.":
        "第 {step} 步有 {n} 个 rank 出现 NaN/Inf{where}：归约之后或溢出；无法指明 rank。",
    "Non-finite values on {n} ranks at step {step}{where}: data or overflow.":
        "第 {step} 步有 {n} 个 rank 出现 NaN/Inf{where}：数据或溢出所致。",
    "Non-finite values began on rank {rank} in {layer}.": "NaN/Inf 最早出现在 rank {rank} 的 {layer}。",
    "Non-finite values began on rank {rank}.": "NaN/Inf 最早出现在 rank {rank}。",
    "Non-finite values began on several ranks in {layer}.": "NaN/Inf 最早在多个 rank 的 {layer} 出现。",
    "Non-finite values began on several ranks.": "NaN/Inf 最早在多个 rank 出现。",
    "FP8 of {job}: {names} in {layer} since step {step}; the recipe or the model, not hardware.":
        "{job} 的 FP8：自第 {step} 步起 {layer} 中{names}；配方或模型所致，不是硬件问题。",
    "FP8 on rank {rank} alone ({node}): {names} in {layer} since step {step}; its peers are as before: a hardware"
    " suspect.": "仅 rank {rank}（{node}）的 FP8：自第 {step} 步起 {layer} 中{names}；同类不变：怀疑硬件。",
    "FP8 on rank {rank} alone: {names} in {layer} since step {step}; its peers are as before: a hardware suspect.":
        "仅 rank {rank} 的 FP8：自第 {step} 步起 {layer} 中{names}；同类不变：怀疑硬件。",
    "FP8 values are back at their level": "FP8 数值已回到正常水平",
    "Rank {rank} holds other bits than its replicas at step {step}: silent data corruption.":
        "第 {step} 步 rank {rank} 与其副本逐位不同：静默数据错误。",
    "Replicas hold other bits than each other at step {step}: silent data corruption.":
        "第 {step} 步各副本逐位不同：静默数据错误。",
    # Hangs, crashes, blindness
    "Job {job} stands still. {hang} (confidence {sure}). It is the second hang on {node} within a day.":
        "作业 {job} 停滞。{hang}（把握 {sure}）。这是 {node} 一天内第二次挂起。",
    "Job {job} stands still. {hang} (confidence {sure}).": "作业 {job} 停滞。{hang}（把握 {sure}）。",
    "Job {job} stands still. {hang}.": "作业 {job} 停滞。{hang}。",
    "Job {job} makes steps again.": "作业 {job} 恢复推进。",
    "{job} crashed: {who} names the device that failed: {cause}.": "{job} 崩溃：{who} 指明了故障设备：{cause}。",
    "{job} crashed: {who} is where it began: {cause}.": "{job} 崩溃：起于 {who}：{cause}。",
    "{job} crashed: no rank can be named: {cause}.": "{job} 崩溃：无法指明 rank：{cause}。",
    "{job} makes steps again after its crash": "{job} 在崩溃后恢复推进",
    "Flightwatch is blind since {time}: rows are stored late, so silence is not judged and no action is proposed.":
        "Flightwatch 自 {time} 起失明：数据入库延迟，因此不判断静默，也不建议操作。",
    "Flightwatch is blind since {time}: {cause}; absence is not judged, nothing is acted on.":
        "Flightwatch 自 {time} 起失明：{cause}；不判断缺失，也不执行操作。",
    "Flightwatch sees again after {n} minutes: what was sent meanwhile is judged now.":
        "Flightwatch 在 {n} 分钟后恢复：期间发送的数据现在开始判断。",
    # Why nothing is done (`policy`)
    "actions are off (actions.mode)": "操作已关闭（actions.mode）",
    "the incident is over": "事件已结束",
    "no hardware is to blame": "不归因于硬件",
    "findings of kind {kind} ask for no drain": "{kind} 类发现不要求隔离",
    "the cause is not one node": "原因不是单个节点",
    "the name of the node cannot be passed on": "节点名无法传给调度器",
    "{node} is not in the inventory": "{node} 不在资产清单中",
    "it rests on old data": "依据的数据较旧",
    "a maintenance window covers it": "处于维护窗口内",
    "a {kind} asks for a drain only when the node had one before within a day":
        "只有节点一天内曾有 {kind} 时才要求隔离",
    "the job still runs, and no spare node is free": "作业仍在运行，且没有空闲备用节点",
    "the job still runs, and spare nodes are not known": "作业仍在运行，且备用节点情况未知",
    "the job still runs, and what going on costs is not known": "作业仍在运行，且继续运行的代价未知",
    "the job still runs, and going on costs {loss} GPU-hours in {hours} h; what a restart costs is not known":
        "作业仍在运行；继续运行 {hours} 小时损失 {loss} GPU 时，重启代价未知",
    "the job still runs: going on costs {loss} GPU-hours in {hours} h, a restart {restart}":
        "作业仍在运行：继续运行 {hours} 小时损失 {loss} GPU 时，重启代价 {restart} GPU 时",
    # Device errors: last, because their words are a vendor's and may be any
    "{who}: {code}, {meaning} ({others} followed); {action}.": "{who}：{code}，{meaning}（随后出现 {others}）；{action}。",
    "{who}: {code}, {meaning}; {action}.": "{who}：{code}，{meaning}；{action}。",
}  # fmt: skip

#: Texts of holes. Those of reasons, stacks and signs are read part by part.
WORDS: Mapping[str, str] = {
    # What a slow target does
    "computes {n} % longer than its role peers": "计算时间比同角色 rank 长 {n} %",
    "leaves its devices idle {n} % of the step longer than its peers (launch gap)":
        "使设备多空闲每步的 {n} %（下发间隙）",
    "waits {n} % of the step longer for data than its peers": "等待数据的时间比同类多每步的 {n} %",
    "moves data {n} % of the step longer": "传输数据的时间多每步的 {n} %",
    # Why coverage is insufficient
    "only {n} of {all} ranks report": "{all} 个 rank 中只有 {n} 个上报",
    "no compute times are known, so no rank can be told from its victims": "没有计算时间，无法区分肇因与受害 rank",
    "its placements are unknown, so ranks are only compared with their own past": "角色未知，各 rank 只与自身历史比较",
    "a role has {n} ranks, too few to compare; only changes are judged": "某角色只有 {n} 个 rank，不足以比较；只判断变化",
    "{n} % of the step is neither compute nor communication": "每步有 {n} % 既非计算也非通信",
    # What is waited for, and per what
    "data": "数据", "transfers": "传输", "step": "步", "token": "个 token ",
    # Heat
    "its fan slowed down": "其风扇变慢",
    "its fan runs, so look at paste, pump or airflow": "其风扇正常，请检查导热材料、水泵或风道",
    "its own cooling, not the rack's": "是其自身散热，而非机柜",
    # FP8
    "largest values jumped": "最大值跳变", "scales collapsed": "缩放系数坍塌", "values overflow": "数值溢出",
    "values overflowed": "数值溢出", "values underflow": "数值下溢",
    # Hangs
    "{a} wait in {b} for {c}, which never arrived": "{a} 在 {b} 中等待始终未到的 {c}",
    "{a} waits in {b} for {c}, which never arrived": "{a} 在 {b} 中等待始终未到的 {c}",
    "{a} called something else than the others at {b}": "{a} 在 {b} 处调用了与其他 rank 不同的操作",
    "{a} passed another size than the others to {b}": "{a} 传给 {b} 的大小与其他 rank 不同",
    "All members joined {b} and it does not finish: look at links and devices, first at {a}":
        "所有成员都已进入 {b} 但未完成：请检查链路和设备，先看 {a}",
    "All members joined {b} and it does not finish: look at links and devices":
        "所有成员都已进入 {b} 但未完成：请检查链路和设备",
    "A transfer failed under {a}": "{a} 的一次传输失败", "A transfer failed": "一次传输失败",
    "The host side of {a} is stuck, not the network": "{a} 的主机侧卡住，不是网络",
    "{a} waits for input data": "{a} 在等待输入数据",
    "A device failed under {a}": "{a} 的设备故障", "A device failed": "设备故障",
    "{a} are stuck in {b}; this evidence does not name the culprit": "{a} 卡在 {b}；现有证据不能指明肇因",
    "{a} is stuck in {b}; this evidence does not name the culprit": "{a} 卡在 {b}；现有证据不能指明肇因",
    "This evidence does not show who hangs": "现有证据看不出谁挂起",
    "its stack stands at {a}": "其调用栈停在 {a}",
    "nothing was heard from {a}": "没有收到 {a} 的消息",
    # Crashes and blindness
    "a collective had timed out": "集合通信超时", "the hang names its root": "根因见挂起分析",
    "nothing has arrived for {n} s": "已 {n} 秒没有数据到达", "ingest is {n} s behind the bus": "入库落后总线 {n} 秒",
    # What a person should do
    "no action needed": "无需操作", "look at the message": "请查看消息原文",
    "no action now; watch whether it repeats on this device": "暂无需操作；观察该设备是否再次出现",
    "restart the job; if it repeats on this device with other programs, run a GPU diagnostic":
        "重启作业；若该设备换程序后仍出现，运行 GPU 诊断",
    "look at the program first (out-of-range access, bad kernel); hardware only if it follows the GPU":
        "先检查程序（越界访问、错误的 kernel）；只有随 GPU 出现时才是硬件",
    "drain the node, stop all processes on the GPU and reset it": "隔离节点，停止该 GPU 上的所有进程并复位",
    "reset the GPU when the node is idle, so that the row remap takes effect": "节点空闲时复位 GPU，使行重映射生效",
    "drain the node and the GPU's peers, then reset the GPU": "隔离节点及该 GPU 的对端，然后复位 GPU",
    "drain work that uses this GPU's peer-to-peer links": "移走使用该 GPU 点对点链路的任务",
    "drain and reboot the node": "隔离并重启节点",
    "drain the node and power-cycle it (a warm reboot is not enough); check seating if it returns":
        "隔离节点并断电重启（热重启不够）；若再次出现，检查插接",
    "isolate the node; the GPU has to be replaced (RMA)": "隔离节点；GPU 需更换（RMA）",
    "drain the node, reset the GPUs on this link and check it (cable, tray, NVSwitch); RMA if it returns":
        "隔离节点，复位该链路上的 GPU 并检查（线缆、托盘、NVSwitch）；若再次出现则 RMA",
    "check the power cables and supplies of the GPU": "检查 GPU 的供电线缆和电源",
    "drain the node, reset all GPUs and NVSwitches together and restart the fabric manager":
        "隔离节点，一并复位所有 GPU 和 NVSwitch 并重启 fabric manager",
    "drain the node and reset the GPU's PCIe bus": "隔离节点并复位 GPU 的 PCIe 总线",
    "update driver or firmware, then restart": "更新驱动或固件后重启",
    "collect a bug report (nvidia-bug-report.sh) and contact support if it repeats":
        "收集诊断报告（nvidia-bug-report.sh），若再次出现请联系支持",
    "drain the node and reset the GPU; replace it if the error returns": "隔离节点并复位 GPU；若再次出现则更换",
    "drain the node and reset the GPU, so that the row remap takes effect": "隔离节点并复位 GPU，使行重映射生效",
    "isolate the node; the GPU has to be replaced (RMA): a row remap failed":
        "隔离节点；GPU 需更换（RMA）：行重映射失败",
    "drain the node and reset the GPU; run a GPU diagnostic before it takes work again":
        "隔离节点并复位 GPU；恢复任务前运行 GPU 诊断",
    "drain the node; check the PCIe slot, riser and device at this address":
        "隔离节点；检查该地址的 PCIe 插槽、转接卡和设备",
    "drain the node and repair the host (memory, CPU or board as the message names it)":
        "隔离节点并修理主机（按消息检查内存、CPU 或主板）",
    "drain the node and replace the memory module": "隔离节点并更换内存条",
    "check the cable and the switch port": "检查线缆和交换机端口",
    "drain the node; check the network adapter (firmware, slot, temperature)": "隔离节点；检查网卡（固件、插槽、温度）",
    "drain the node, read its kernel log, reset the GPU (power-cycle when the reset fails)":
        "隔离节点，查看内核日志，复位 GPU（复位失败则断电重启）",
    "lower the batch or sequence size; restart the job": "减小 batch 或序列长度；重启作业",
    "check cooling and airflow of the device; lower its load until then": "检查设备散热和风道；在此之前降低负载",
    "check the fan and the airflow": "检查风扇和风道",
    "drain the node; check the disk": "隔离节点；检查磁盘",
}  # fmt: skip
