"""Run bench on other machines: survey a node, ship the image, start the run, mirror it, fetch the bundle.

hosts           who is meant: arguments, an Ansible inventory
remote          a node's shell, over SSH or on this machine
node_survey     the state of a node, asked in one round trip; node_findings judges it
image_store     images on this machine, layer by layer; ship brings a node what it lacks
run_script      run.sh: how a run starts, is asked after and ends on its node; slurm: as a job
push_record     a file on this machine for every run that was started
mirror          the run's files copied here while they grow; its certificate; its bundle
push_to_node    one node from connection to bundle, and several at a time
training_group  nodes that train as one
request         what one push asks for, and the result for each host; screen: what the user sees

Entry points: `push_to_node.NodePush`, `push_record.Records`, `mirror`. Imports images, operator, node_check
and below.
"""
