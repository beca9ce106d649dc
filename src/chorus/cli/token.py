"""`chorus token`: the secret of a cluster, who has joined with it, and who is no longer welcome."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from chorus.cli.output import console, fail
from chorus.security.authority import Authority
from chorus.security.node_folder import state_dir

app = typer.Typer(help="Make, show and rotate the cluster's token; expel nodes.", no_args_is_help=True)


@app.command()
def new() -> None:
    """Make a cluster: this machine becomes its authority. Prints the token that lets others join.

    Example: chorus token new
    """
    authority = Authority.create(state_dir() / "authority")
    typer.echo(authority.token.text)
    console.print("on every other machine: chorus join, which asks for this token; here: chorus serve MODEL --cluster")


@app.command()
def show() -> None:
    """Print the token in force.

    Example: chorus token show
    """
    typer.echo(_authority().token.text)


@app.command()
def rotate() -> None:
    """Replace the token. Nodes that have joined stay; the old token lets nobody in any more.

    Example: chorus token rotate
    """
    typer.echo(_authority().rotate().text)


@app.command()
def nodes(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the nodes that were given a certificate, and which of them are refused.

    Example: chorus token nodes
    """
    authority = _authority()
    expelled = authority.expelled().ids
    latest = {issued.node_id: issued for issued in authority.issued()}
    rows = [{**vars(issued), "expelled": issued.node_id in expelled} for issued in latest.values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['name']}  {row['node_id']}  {row['role']}{'  expelled' if row['expelled'] else ''}")


@app.command()
def expel(node: Annotated[str, typer.Argument(help="Name or id of a node.")]) -> None:
    """Refuse a node from now on; the token is rotated too, since the node knows it.

    Example: chorus token expel mini2
    """
    authority = _authority()
    if not authority.expel(node):
        known = sorted({issued.name for issued in authority.issued()})
        fail(f"no node {node} has joined; known: {', '.join(known) or 'none'}")
    typer.echo(authority.rotate().text)
    console.print(f"{node} is expelled; this is the new token")


def _authority() -> Authority:
    return Authority(state_dir() / "authority")
